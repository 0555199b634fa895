"""Compare predictions of whole files with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.accuracy.predict import predict_rows, reasons
from meshwright.accuracy.residuals import Read, fit_outcomes, residuals_of
from meshwright.accuracy.rows import read_table
from meshwright.accuracy.run import NOTHING, Own
from meshwright.accuracy.score import Figures, guesses_of, read_predictions, score_table
from meshwright.accuracy.spreads import Coverage, coverage
from meshwright.accuracy.tables import TruthTable
from meshwright.accuracy.verdicts import Verdicts, judge
from meshwright.confidence import QUANTITIES, Quantity

__all__ = ["Validation", "validate_tables"]


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
    made, residuals = guesses_of(answers), residuals_of(read, answers)
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
