"""What hiding a told column of published runs does to their predictions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean

import numpy as np

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.files import peak_memory_of, step_time_of
from meshwright.runs.measured.predict import Prediction, predict_rows
from meshwright.runs.measured.rows import Case, read_row
from meshwright.trust.intervals import QUANTITIES, Assumption, Doubt
from meshwright.values.layout import Layout
from meshwright.values.text import csv_text
from meshwright_truth.score import comparison_of
from meshwright_truth.spreads import quantiles

__all__ = [
    "HIDDEN",
    "Hidden",
    "doubts_csv",
    "doubts_of",
    "hidden_runs",
    "share_found",
    "tuned_rows",
]

HIDDEN: Mapping[Assumption, tuple[str, ...]] = {
    "micro batch": ("mbs", "ga"),
    "global batch": ("gbs", "ga"),
    "recompute": ("recompute", "recompute_detail"),
    "sharding": ("zero", "dp_shard"),
    "sequence parallelism": ("sp",),
    "precision": ("precision",),
    "sequence length": ("seq_len",),
    "number of chips": ("num_gpus", "dp"),
    "parallel axes": ("tp", "pp", "vpp", "cp", "ep", "dp", "dp_shard"),
}
"""Columns that tell it; hidden together."""
MOST_ROWS = 120
"""Of a table, evenly spaced: sweeps of hundreds of layouts would take long and say no more."""
MOVED = 0.85
"""Share of rows that hiding something moves by less than its half-width. With it intervals hold 87
to 89 % of step times whose micro batch, recomputation, precision or length is hidden, of told ones
95 %; with 80 % they hold 82 to 87 %, with 90 % they are twice as wide for 89 to 93 %."""
Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hidden:
    """One run that tells something, predicted with and without it."""

    table: str
    row: Row
    assumption: Assumption
    told: Prediction
    blank: Prediction

    @property
    def found(self) -> bool:
        """Whether what was taken for the blank is what was told."""
        told, taken = self.told.case, self.blank.case
        layout = taken.layout
        same: Mapping[Assumption, bool] = {
            "micro batch": layout.mbs == told.layout.mbs,
            "global batch": layout.gbs == told.layout.gbs,
            "recompute": layout.recompute == told.layout.recompute,
            "sharding": layout.sharding == told.layout.sharding,
            "sequence parallelism": layout.sp == told.layout.sp,
            "precision": taken.workload.precision == told.workload.precision,
            "sequence length": taken.workload.seq_len == told.workload.seq_len,
            "number of chips": layout.num_chips == told.layout.num_chips,
            "parallel axes": _axes(layout) == _axes(told.layout),
        }
        return same[self.assumption]

    @property
    def time_ratio(self) -> float:
        """The blank row's step time over the told row's."""
        return self.blank.step_s / self.told.step_s

    @property
    def memory_ratio(self) -> float:
        """The same of the peak of memory."""
        return self.blank.peak_memory_bytes / self.told.peak_memory_bytes

    @property
    def error(self) -> float | None:
        """|predicted / measured - 1| of the blank row's step time, where it is known."""
        measured = step_time_of(self.table, self.row)
        return None if measured is None else abs(self.blank.step_s / measured - 1.0)


def hidden_runs(tables: Sequence[TruthTable], *, most: int = MOST_ROWS) -> list[Hidden]:
    """Hide each thing that a row tells in turn, and predict it both ways."""
    pairs = [
        (table.name, row, what, told, blank)
        for table in tables
        for row in _spaced(_measured(table), most)
        for what, told, blank in _pairs(row, table.name)
    ]
    cases = [
        replace(case, source=end, row_id=str(i))
        for i, (*_, told, blank) in enumerate(pairs)
        for end, case in (("told", told), ("blank", blank))
    ]
    made = {(p.source, int(p.row_id)): p for p in predict_rows(cases).predictions}
    return [
        Hidden(
            table=table,
            row=row,
            assumption=what,
            told=made["told", i],
            blank=made["blank", i],
        )
        for i, (table, row, what, _, _) in enumerate(pairs)
        if ("told", i) in made and ("blank", i) in made
    ]


def _measured(table: TruthTable) -> list[Row]:
    return [
        row
        for row in table.rows
        if step_time_of(table.name, row) is not None or peak_memory_of(row) is not None
    ]


def _axes(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.vpp, layout.cp, layout.ep, layout.dp


def _spaced(rows: Sequence[Row], most: int) -> list[Row]:
    step = max(1.0, len(rows) / most)
    return [rows[int(i * step)] for i in range(min(most, len(rows)))]


def _pairs(row: Row, source: str) -> Iterable[tuple[Assumption, Case, Case]]:
    told = read_row(row, source=source)
    if not isinstance(told, Case) or told.machines.mixed:
        return
    for what, columns in HIDDEN.items():
        blank = read_row({**row, **dict.fromkeys(columns, "")}, source=source)
        if isinstance(blank, Case) and what in blank.assumptions and what not in told.assumptions:
            yield what, told, blank


def tuned_rows(tables: Iterable[TruthTable]) -> set[tuple[str, str]]:
    """Return the rows that no other of their set, differing in layout alone, is faster than: what
    somebody who tunes would run."""
    best: dict[tuple[str, ...], float] = {}
    timed = [
        (table.name, row["row_id"], (table.name, *comparison_of(row)), seconds)
        for table in tables
        for row in table.rows
        if (seconds := step_time_of(table.name, row)) is not None
    ]
    for _, _, compared, seconds in timed:
        best[compared] = min(seconds, best.get(compared, math.inf))
    return {
        (name, row_id) for name, row_id, compared, seconds in timed if seconds <= best[compared]
    }


def share_found(runs: Iterable[Hidden]) -> float:
    """Return how often the told value was taken, as a mean over tables."""
    by_table = defaultdict(list)
    for run in runs:
        by_table[run.table].append(run.found)
    return fmean(fmean(found) for found in by_table.values()) if by_table else math.nan


def doubts_of(runs: Sequence[Hidden]) -> list[Doubt]:
    """Return how far each thing that is hidden moves time and memory, tables alike."""
    found = []
    for quantity in QUANTITIES:
        for what in HIDDEN:
            some = [run for run in runs if run.assumption == what]
            if some:
                ratio = [
                    run.time_ratio if quantity == "step_time" else run.memory_ratio for run in some
                ]
                rows = Counter(run.table for run in some)
                weights = np.array([1.0 / rows[run.table] / len(rows) for run in some])
                [half] = quantiles(np.abs(np.log(ratio)), weights, (MOVED,))
                found.append(
                    Doubt(
                        quantity=quantity,
                        assumption=what,
                        half_width=half,
                        rows=len(some),
                        tables=len(rows),
                    )
                )
    return found


def doubts_csv(doubts: Sequence[Doubt]) -> str:
    """Return `trust/assumptions.csv`."""
    names = [each.name for each in fields(Doubt)]
    lines = (
        [f"{v:.4f}" if isinstance(v, float) else str(v) for v in asdict(doubt).values()]
        for doubt in doubts
    )
    return csv_text(names, lines)
