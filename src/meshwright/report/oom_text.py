"""What `why-oom` prints for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.report.explain_text import header_lines, plain_table, print_intervals, print_memory
from meshwright.search.terms import MEMORY_READINGS
from meshwright.units import GIB

if TYPE_CHECKING:
    from rich.console import Console

    from meshwright.search.oom import Ladder, Rung
    from meshwright.search.quote import Quote, Setting

__all__ = ["print_ladder"]

LABEL_WORDS = {
    "execution only": "",
    "reshard the checkpoint": "checkpoint",
    "changes data order": "data order",
    "changes training": "training",
}


def print_ladder(found: Ladder, setting: Setting, console: Console) -> None:
    """Print where the memory goes and every rung."""
    for line in header_lines(found.quote, setting):
        console.print(line, soft_wrap=True)
    print_intervals(setting.intervals(found.quote), console)
    console.print(f"\n{_cause(found.quote)}")
    print_memory(found.quote, console)
    _print_rungs(found, console)
    if found.together is not None:
        rung = found.together
        console.print(f"\nNo single fix on these GPUs does. Together: {rung.words}:")
        console.print(f"{_numbers(rung)}; layout {rung.layout.words()}")
    elif not any(rung.quote.fits for rung in found.rungs) and not found.quote.fits:
        console.print(
            "\nNo fix and no three of them together make it fit; ask `meshwright plan` for layouts"
            " of another kind."
        )


def _cause(quote: Quote) -> str:
    stage = quote.fullest
    term = stage.largest_term
    largest = (
        f"its largest term is {MEMORY_READINGS[term].title},"
        f" {stage.memory_bytes[term] / GIB:.1f} GiB"
    )
    amounts = f"{quote.peak_bytes / GIB:.1f} of {quote.limit_bytes / GIB:.1f} GiB"
    if quote.fits:
        return (
            f"It fits: stage {stage.stage}, the fullest, uses {amounts}, which leaves"
            f" {-quote.over_bytes / GIB:.1f} GiB; {largest}. Should it run out all the same, these"
            " help:"
        )
    return (
        f"Stage {stage.stage} needs {amounts}, {quote.over_bytes / GIB:.1f} GiB too much;"
        f" {largest}."
    )


def _print_rungs(found: Ladder, console: Console) -> None:
    table = plain_table(
        "Fixes, each by itself", "fix", "step", "saves GiB", "peak GiB", "fits", last="changes"
    )
    for rung in found.rungs:
        numbers = (
            f"{rung.step_change_frac:+.1%}",
            f"{rung.saved_bytes / GIB:.1f}",
            f"{rung.quote.peak_bytes / GIB:.1f}",
            rung.quote.verdict,
        )
        words = rung.words.replace("=expandable_segments", "=\nexpandable_segments")
        table.add_row(
            words, *numbers, ", ".join(filter(None, (LABEL_WORDS[label] for label in rung.labels)))
        )
    console.print(table)


def _numbers(rung: Rung) -> str:
    return (
        f"step {rung.step_change_frac:+.1%}, peak {rung.quote.peak_bytes / GIB:.1f} GiB, saves"
        f" {rung.saved_bytes / GIB:.1f} GiB"
    )
