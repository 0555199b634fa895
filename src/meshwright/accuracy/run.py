"""Predict and validate whole files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.accuracy.predict import Answers, predict_rows, reasons
from meshwright.accuracy.rows import read_table
from meshwright.accuracy.score import Figures, guesses_of, read_predictions, score_table
from meshwright.accuracy.tables import TruthTable, read_truth
from meshwright.errors import ConfigError

__all__ = ["Counts", "Validation", "counts", "predict_files", "predict_tables", "read_tables", "validate_files"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How many rows of one table were answered, and why not the others."""

    rows: int
    answered: int
    unanswered: Mapping[str, int]
    """Rows by reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """The figures of every table, and the rows that were not answered, by table and reason."""

    figures: Mapping[str, Figures]
    unanswered: Mapping[str, Mapping[str, int]]


def read_tables(paths: Sequence[Path]) -> list[TruthTable]:
    """Read tables of training runs; their names must differ, for predictions are told apart by them."""
    tables = [read_truth(path) for path in paths]
    names = [table.name for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)}: two files of this name; predictions are told apart by the file's name")
    return tables


def predict_tables(tables: Sequence[TruthTable]) -> Answers:
    """Predict every row of every table."""
    return predict_rows(case for table in tables for case in read_table(table))


def predict_files(paths: Sequence[Path]) -> Answers:
    """Predict every row of every file."""
    return predict_tables(read_tables(paths))


def counts(answers: Answers) -> dict[str, Counts]:
    """Return the counts by table."""
    why = reasons(answers)
    names = {p.source for p in answers.predictions} | set(why)
    found = {}
    for name in sorted(names):
        answered = sum(p.source == name for p in answers.predictions)
        missing = why.get(name, {})
        found[name] = Counts(rows=answered + sum(missing.values()), answered=answered, unanswered=missing)
    return found


def validate_files(paths: Sequence[Path], *, predictions: Path | None = None) -> Validation:
    """Predict the files' rows, or read predictions made before, and compare them with what was measured."""
    tables = read_tables(paths)
    _check_measured(tables)
    if predictions is not None:
        guesses = read_predictions(predictions)
        return Validation(figures={table.name: score_table(table, guesses) for table in tables}, unanswered={})
    answers = predict_tables(tables)
    made = guesses_of(answers)
    return Validation(figures={table.name: score_table(table, made) for table in tables}, unanswered=reasons(answers))


def _check_measured(tables: Sequence[TruthTable]) -> None:
    for table in tables:
        if not any(name in table.rows[0] for name in ("step_time_s", "peak_mem_gib", "oom")):
            raise ConfigError(f"{table.name}: no measured column (step_time_s, peak_mem_gib, oom); nothing to compare with")
