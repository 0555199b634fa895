"""What became of published runs that are said to fit, to be at risk, or not to fit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from meshwright.accuracy.residuals import FitOutcome, Residual
from meshwright.accuracy.score import SMALLEST_GROUP
from meshwright.accuracy.spreads import Found, fit_spreads, widening_of
from meshwright.confidence import Fits, find_spread, fits_within, headroom_bytes

__all__ = ["FirstPlan", "Verdicts", "judge"]

_ORDER: tuple[Fits, ...] = get_args(Fits)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstPlan:
    """What a set of runs that differ in layout alone says of the plan that would have been printed
    first: of those told to fit the fastest, else of those at risk."""

    fits: Fits
    started: bool
    lost_frac: float | None
    """Throughput lost against the fastest run; None where it did not start, or its time is
    doubtful."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """Runs of one table by verdict."""

    fitted: dict[Fits, int]
    ran_out: dict[Fits, int]
    first: tuple[FirstPlan, ...] = field(default=())
    """Of each set some of whose runs ran out."""

    @property
    def runs(self) -> int:
        """Runs that are known to fit or not."""
        return sum(self.fitted.values()) + sum(self.ran_out.values())


def judge(outcomes: Sequence[FitOutcome], residuals: Sequence[Residual]) -> dict[str, Verdicts]:
    """Return the verdicts by table, each made with memory bounds that do not know the table; empty
    where no other tells memory."""
    memory = [residual for residual in residuals if residual.quantity == "peak_memory"]
    found = {}
    for table in sorted({outcome.table for outcome in outcomes}):
        rest = [residual for residual in memory if residual.table != table]
        if rest:
            spreads = fit_spreads(rest, factors={"peak_memory": widening_of(memory)})
            found[table] = _verdicts(
                [outcome for outcome in outcomes if outcome.table == table], spreads
            )
    return found


def _verdicts(outcomes: Sequence[FitOutcome], spreads: Found) -> Verdicts:
    said = [(_verdict(outcome, spreads), outcome) for outcome in outcomes]
    return Verdicts(
        fitted=dict(Counter(verdict for verdict, outcome in said if outcome.fitted)),
        ran_out=dict(Counter(verdict for verdict, outcome in said if not outcome.fitted)),
        first=tuple(_first_plans(said)),
    )


def _first_plans(said: Iterable[tuple[Fits, FitOutcome]]) -> Iterable[FirstPlan]:
    sets = defaultdict(list)
    for verdict, outcome in said:
        sets[outcome.compared].append((verdict, outcome))
    for runs in sets.values():
        times = [outcome.measured_s for _, outcome in runs if outcome.measured_s is not None]
        if len(times) < SMALLEST_GROUP or all(outcome.fitted for _, outcome in runs):
            continue
        fits, chosen = min(runs, key=lambda run: (_ORDER.index(run[0]), run[1].predicted_s))
        lost = None if chosen.measured_s is None else 1.0 - min(times) / chosen.measured_s
        yield FirstPlan(fits=fits, started=chosen.fitted, lost_frac=lost)


def _verdict(outcome: FitOutcome, spreads: Found) -> Fits:
    headroom = headroom_bytes(
        find_spread(spreads, outcome.kind, "peak_memory"), outcome.limit_bytes
    )
    return fits_within(outcome.used_bytes, limit_bytes=outcome.limit_bytes, headroom_bytes=headroom)
