"""What became of published runs that are said to fit, to be at risk, or not to fit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from meshwright.cost.headroom import headroom_bytes
from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.files import NOTHING, Own, Tables, read_tables, sort_tables
from meshwright.runs.measured.predict import predict_rows, reasons
from meshwright.runs.measured.rows import read_table
from meshwright.trust.intervals import QUANTITIES, Fits, Quantity, find_spread, fits_within
from meshwright_truth.coverage import Coverage, coverage, widening_of
from meshwright_truth.residuals import (
    FitOutcome,
    Read,
    Residual,
    fit_outcomes,
    residuals_of,
    unknown_software,
)
from meshwright_truth.score import (
    SMALLEST_GROUP,
    Figures,
    guesses_of,
    read_predictions,
    score_table,
)
from meshwright_truth.spreads import Found, fit_spreads

__all__ = ["FirstPlan", "Validation", "Verdicts", "judge", "read_measured", "validate_tables"]

COMPARED = ("step_time_s", "peak_mem_gib", "oom")
"""Columns that predictions are compared with."""
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
    found, widening = {}, widening_of(memory)
    for table in sorted({outcome.table for outcome in outcomes}):
        rest = [residual for residual in memory if residual.table != table]
        if rest:
            spreads = fit_spreads(rest, factors={"peak_memory": widening})
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
    high = find_spread(spreads, outcome.kind, "peak_memory").high
    headroom = headroom_bytes(outcome.limit_bytes, high=high)
    return fits_within(outcome.used_bytes, limit_bytes=outcome.limit_bytes, headroom_bytes=headroom)


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """The figures of every table, and the rows that were not answered, by table and reason."""

    figures: Mapping[str, Figures]
    unanswered: Mapping[str, Mapping[str, int]]
    coverage: Mapping[Quantity, Coverage] = field(default_factory=dict)
    """How often intervals hold; empty where predictions were read, or fewer than two tables
    tell."""
    verdicts: Mapping[str, Verdicts] = field(default_factory=dict)
    """How many runs fitted, by table and verdict."""


def read_measured(paths: Sequence[Path]) -> Tables:
    """Read the tables among some files that predictions can be compared with."""
    found = read_tables(paths)
    reason = f"no measured column ({', '.join(COMPARED)}); nothing to compare with"
    blank = [
        table.name for table in found.kept if not any(name in table.rows[0] for name in COMPARED)
    ]
    measured = sort_tables(
        tuple(table for table in found.kept if table.name not in blank),
        [(name, reason) for name in blank],
    )
    return Tables(kept=measured.kept, left_out=(*found.left_out, *measured.left_out))


def validate_tables(
    tables: Sequence[TruthTable], *, predictions: Path | None = None, own: Own = NOTHING
) -> Validation:
    """Predict the tables' rows, or read predictions made before, and compare them with what was
    measured."""
    if predictions is not None:
        guesses = read_predictions(predictions)
        return Validation(
            figures={table.name: score_table(table, guesses) for table in tables}, unanswered={}
        )
    read: Read = [(table, own.on(read_table(table))) for table in tables]
    answers = predict_rows(case for _, cases in read for case in cases)
    made = guesses_of(answers)
    residuals = residuals_of(read, answers, as_family=unknown_software(read))
    found = {
        quantity: held
        for quantity in QUANTITIES
        if (held := coverage(residuals, quantity)) is not None
    }
    return Validation(
        figures={table.name: score_table(table, made) for table in tables},
        unanswered=reasons(answers),
        coverage=found,
        verdicts=judge(fit_outcomes(read, answers), residuals),
    )
