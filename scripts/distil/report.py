"""Accuracy of the shipped tables on the rows kept out of the fit, as text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distil.surface import Fit, Floats
from meshwright.values.hardware.grid import Grid

__all__ = ["Accuracy", "accuracy", "accuracy_lines"]


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How far one table is from rows that it has not seen."""

    chip: str
    table: str
    rows: int
    held: int
    median: float
    p90: float
    large_median: float
    bias: float
    """Median of the signed errors of large rows."""
    moved_median: float
    moved_p99: float


def accuracy(chip: str, name: str, fit: Fit, grid: Grid) -> Accuracy:
    """Errors of the stored table, after rounding, through the lookup that the package uses."""
    predicted = grid.lookup(*fit.held.columns).seconds + fit.held.added
    signed = predicted / fit.held.seconds - 1
    large = signed[fit.held.large]
    return Accuracy(
        chip=chip,
        table=name,
        rows=fit.rows,
        held=len(signed),
        median=float(np.median(np.abs(signed))),
        p90=float(np.quantile(np.abs(signed), 0.9)),
        large_median=_median(np.abs(large)),
        bias=_median(large),
        moved_median=float(np.median(np.abs(fit.moved))),
        moved_p99=float(np.quantile(np.abs(fit.moved), 0.99)),
    )


def _median(values: Floats) -> float:
    return float(np.median(values)) if len(values) else float("nan")


_HEADINGS = (
    *("chip", "table", "rows fitted", "rows held out", "median %", "p90 %"),
    *("median % of large", "bias % of large", "moved, median %", "moved, p99 %"),
)


def accuracy_lines(rows: list[Accuracy]) -> list[str]:
    """A Markdown table."""
    lines = [
        "| " + " | ".join(_HEADINGS) + " |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        figures = (row.median, row.p90, row.large_median, row.bias, row.moved_median, row.moved_p99)
        lines.append(
            f"| {row.chip} | {row.table} | {row.rows} | {row.held} | "
            + " | ".join(f"{100 * f:.2f}" for f in figures)
            + " |"
        )
    return lines
