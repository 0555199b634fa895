"""Of every published table nearly all rows that tell something can be predicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.runs.measured.cells import TruthTable, read_truth
from meshwright.runs.measured.rows import Case, read_table
from meshwright_truth.score import Figures, Guess, score_table

WANTED = 0.97
NOT_A_LANGUAGE_MODEL = {"amp": ("transgan",)}
"""Rows without sequence and heads: an image model, which no column describes."""


def training_tables(truth_dir: Path) -> list[TruthTable]:
    headings = {
        path: path.read_text(encoding="utf-8").split("\n", 1)[0].split(",")
        for path in sorted(truth_dir.glob("*.csv"))
    }
    found = [path for path, names in headings.items() if "step_time_s" in names]
    assert found
    return [read_truth(path) for path in found]


def shares(table: TruthTable) -> Figures:
    cases = [case for case in read_table(table) if isinstance(case, Case)]
    return score_table(table, {(table.name, case.row_id): Guess(1.0, 1.0, False) for case in cases})


@pytest.mark.slow
def test_nearly_every_row_becomes_a_case(truth_dir: Path) -> None:
    low = {}
    for table in training_tables(truth_dir):
        left_out = NOT_A_LANGUAGE_MODEL.get(table.name, ())
        kept = TruthTable(
            table.name,
            tuple(row for row in table.rows if not row["model"].startswith(left_out or ("-",))),
        )
        figures = shares(kept)
        for kind in ("t_ans", "m_ans", "o_ans"):
            share = getattr(figures, kind)
            if share is not None and share < WANTED:
                low[table.name, kind] = share
    assert low == {}


def test_every_case_of_a_table_has_its_own_id(truth_dir: Path) -> None:
    for table in training_tables(truth_dir):
        ids = [row["row_id"] for row in table.rows]
        assert len(ids) == len(set(ids)), table.name
