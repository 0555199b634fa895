"""What became of published runs that are said to fit, to be at risk, or not to fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.accuracy.residuals import FitOutcome, Residual
from meshwright.accuracy.spreads import Found, fit_spreads, widening_of
from meshwright.confidence import Fits, find_spread, fits_within, headroom_bytes

__all__ = ["Verdicts", "judge"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdicts:
    """Runs of one table by verdict."""

    fitted: dict[Fits, int]
    ran_out: dict[Fits, int]

    @property
    def runs(self) -> int:
        """Runs that are known to fit or not."""
        return sum(self.fitted.values()) + sum(self.ran_out.values())


def judge(outcomes: Sequence[FitOutcome], residuals: Sequence[Residual]) -> dict[str, Verdicts]:
    """Return the verdicts by table, each made with memory bounds that do not know the table; empty where no other tells memory."""
    memory = [residual for residual in residuals if residual.quantity == "peak_memory"]
    found = {}
    for table in sorted({outcome.table for outcome in outcomes}):
        rest = [residual for residual in memory if residual.table != table]
        if rest:
            spreads = fit_spreads(rest, factors={"peak_memory": widening_of(memory)})
            found[table] = _verdicts([outcome for outcome in outcomes if outcome.table == table], spreads)
    return found


def _verdicts(outcomes: Sequence[FitOutcome], spreads: Found) -> Verdicts:
    said = [(_verdict(outcome, spreads), outcome.fitted) for outcome in outcomes]
    return Verdicts(
        fitted=dict(Counter(verdict for verdict, fitted in said if fitted)),
        ran_out=dict(Counter(verdict for verdict, fitted in said if not fitted)),
    )


def _verdict(outcome: FitOutcome, spreads: Found) -> Fits:
    headroom = headroom_bytes(find_spread(spreads, outcome.kind, "peak_memory"), outcome.limit_bytes)
    return fits_within(outcome.used_bytes, limit_bytes=outcome.limit_bytes, headroom_bytes=headroom)
