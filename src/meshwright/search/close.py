"""Whether a rival beats the best plan where one constant is elsewhere in its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.cost.stages import Floats
from meshwright.search.problem import Problem
from meshwright.search.quote import price_in
from meshwright.search.result import Plan
from meshwright.trust.uncertainty import Site, Uncertain, uncertain_constants
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layouts

__all__ = ["CloseCall", "close_call", "with_close_call"]

RIVALS = 5
"""Plans behind the best that may overtake it."""
WORTH = 0.001
"""Share of the step by which a rival must win there: less is no difference at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CloseCall:
    """A constant that decides between the best plan and a rival."""

    uncertain: Uncertain
    now: float
    turns_at: float
    """Where the two are equal."""
    end: float
    """The end of the constant's interval beyond that."""
    rival: int
    """Its rank."""
    gain_frac: float
    """By how much the rival wins at that end, as a share of the step."""

    def words(self) -> str:
        """Say it in a line."""
        side = "below" if self.end < self.now else "above"
        at = (
            f"{self.uncertain.constant} {side} {self.turns_at:.3g} (now {self.now:.3g}, may be"
            f" {self.end:.3g})"
        )
        return (
            f"#{self.rival} wins with {at}, {self.uncertain.title}; there by {self.gain_frac:.1%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "constant": self.uncertain.constant,
            "title": self.uncertain.title,
            "now": self.now,
            "turns_at": self.turns_at,
            "end": self.end,
            "rival": self.rival,
            "gain_frac": self.gain_frac,
            "source": self.uncertain.source,
        }


def with_close_call(problem: Problem, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
    """Return the plans, the best with its close call in `provenance["close"]`, others with None."""
    call = close_call(problem, plans)
    found = [
        None if call is None or plan.rank > 1 else call.to_dict() | {"words": call.words()}
        for plan in plans
    ]
    return tuple(
        replace(plan, provenance={**plan.provenance, "close": close})
        for plan, close in zip(plans, found, strict=True)
    )


def close_call(problem: Problem, plans: Sequence[Plan]) -> CloseCall | None:
    """Return the constant that needs to move by the smallest part of its interval for a rival to
    win; None where none does.

    Formula:  one constant at a time goes to either end of its interval; the best and RIVALS plans
              that fit as well are priced there by the closed form, and each plan's step is scaled
              by what that changes; between its value and the end, the lead is a line
    Units:    shares.
    Source:   `trust/uncertainties.csv`.
    Valid:    ranks by step time; a ranking by memory leans on no constant of time.
    Checked:  tests/search/test_close.py
    """
    rows = [plan for plan in plans[: 1 + RIVALS] if plan.fits == plans[0].fits]
    if len(rows) < 2 or problem.request.objective == "memory":
        return None
    calls = list(_calls(problem, rows))
    return min(calls, key=_way, default=None)


def _way(call: CloseCall) -> float:
    """Part of the way to the interval's end at which the rival wins."""
    return abs(call.turns_at - call.now) / abs(call.end - call.now)


def _calls(problem: Problem, rows: Sequence[Plan]) -> Iterator[CloseCall]:
    setting = problem.setting
    site, layouts = (
        Site(pool=setting.pool, stack=setting.stack),
        Layouts.of(plan.layout for plan in rows),
    )
    now_s = _steps(problem, site, layouts)
    for uncertain in uncertain_constants():
        if _is_measured(uncertain, setting.pool) or not any(
            uncertain.matters_to(plan.layout) for plan in rows
        ):
            continue
        for end, moved in uncertain.ends(site):
            call = _call(
                rows,
                _steps(problem, moved, layouts) / now_s,
                uncertain,
                now=uncertain.value(site),
                end=end,
            )
            if call is not None:
                yield call


def _is_measured(uncertain: Uncertain, pool: Pool) -> bool:
    """Whether the user's profile gives the constant: it then lies where it was measured."""
    tables = pool.node.chip.tables
    place, _, field = uncertain.constant.partition(".")
    return tables is not None and (
        place in tables.measured or (place == "chip" and field in tables.measured)
    )


def _steps(problem: Problem, site: Site, layouts: Layouts) -> Floats:
    return price_in(replace(problem.setting, pool=site.pool, stack=site.stack), layouts).step_s


def _call(
    rows: Sequence[Plan], change: Floats, uncertain: Uncertain, *, now: float, end: float
) -> CloseCall | None:
    """The rival that overtakes first on the way to one end."""
    found = []
    for rival, plan in enumerate(rows[1:], start=1):
        ahead = _per_sequence(plan) / _per_sequence(rows[0]) - 1.0
        there = (
            _per_sequence(plan) * float(change[rival]) / (_per_sequence(rows[0]) * float(change[0]))
            - 1.0
        )
        if there < -WORTH:
            turns_at = now + (end - now) * max(0.0, ahead) / (max(0.0, ahead) - there)
            found.append(
                CloseCall(
                    uncertain=uncertain,
                    now=now,
                    turns_at=turns_at,
                    end=end,
                    rival=plan.rank,
                    gain_frac=-there,
                )
            )
    return min(found, key=_way, default=None)


def _per_sequence(plan: Plan) -> float:
    return plan.step_s / plan.layout.gbs
