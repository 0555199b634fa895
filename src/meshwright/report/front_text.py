"""Plans from the cheapest to the fastest, and what a training with a deadline costs, as text for
people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshwright.report.columns import Column, print_columns
from meshwright.report.mixed_words import mixed_words
from meshwright.report.plan_table import say
from meshwright.search.result import Plan
from meshwright.units import DAY_S

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["cost_words", "print_front"]

_COLUMNS = (
    Column(heading="#"),
    Column(heading="tokens/s"),
    Column(heading="$ per 1M tokens"),
    Column(heading="chips", justify="left"),
    Column(heading="step s"),
    Column(heading="stages: chip, tp, layers", justify="left", spare=1, under=True),
)


def print_front(front: Sequence[Plan], console: Console) -> None:
    """Print the plans of which no other is both faster and cheaper."""
    say(console, "")
    say(
        console,
        "no plan found is both faster and cheaper than one of these; chips in use are paid, idle"
        " ones are not:",
    )
    print_columns(console, _COLUMNS, [_cells(plan) for plan in front], more="--json has them")


def _cells(plan: Plan) -> list[str]:
    chips = ", ".join(f"{used} {name}" for name, used, _ in plan.chips if used)
    words = plan.layout.words() if plan.mixed is None else mixed_words(plan.mixed)
    return [
        str(plan.rank),
        f"{plan.tokens_per_s:.0f}",
        f"{1e6 / (plan.tokens_per_dollar or 1.0):.4g}",
        chips,
        f"{plan.step_s:.4g}",
        words,
    ]


def cost_words(plan: Plan, tokens: int, words: str) -> str:
    """Say how long a plan trains on some tokens, and for how much; stops and restarts are
    `estimate`'s."""
    days = tokens / plan.tokens_per_s / DAY_S
    price = (
        ""
        if plan.tokens_per_dollar is None
        else f" for {tokens / plan.tokens_per_dollar:,.0f} dollars"
    )
    return (
        f"#1 trains {words} tokens in {days:.2f} days{price}, without stops (`meshwright estimate`"
        " counts them)"
    )
