"""Measured loads as a table: one line a load, times in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.loads.figures import Figures

__all__ = ["DEFINITIONS", "HEADINGS", "figure_cells", "load_lines"]

HEADINGS = (
    "requests",
    "failed",
    "req/s",
    "tok/s",
    "TTFT ms",
    "p99",
    "TPOT ms",
    "p99",
    "e2e ms",
    "p99",
    "good/s",
)
DEFINITIONS = (
    "TTFT: from sending a request to its first token; TPOT: (last token - first) / (output tokens -"
    " 1); e2e: to the last token; means,\nand the 99th percentile. tok/s: new tokens, prompts not"
    " counted, over the time from the first request to the last token."
)


def figure_cells(figures: Figures) -> tuple[str, ...]:
    """Return the cells of one load, as HEADINGS has them; a dash for what was not measured."""
    times = [
        value
        for spread in (figures.ttft_s, figures.tpot_s, figures.e2e_s)
        for value in (spread.mean, spread.p99)
    ]
    good = math.nan if figures.good_per_s is None else figures.good_per_s
    return (
        *(
            str(figures.requests),
            str(figures.failed),
            _number(figures.requests_per_s),
            _number(figures.tokens_per_s),
        ),
        *(_number(1e3 * value) for value in times),
        _number(good),
    )


def load_lines(rows: Sequence[tuple[Sequence[str], Figures]], *, names: Sequence[str]) -> list[str]:
    """Return a table as lines: the columns of `names`, then the figures."""
    cells = [(*names, *HEADINGS), *((*row, *figure_cells(figures)) for row, figures in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    left = len(names)
    return [
        "  ".join(
            _placed(cell, widths[at], left=at < left) for at, cell in enumerate(line)
        ).rstrip()
        for line in cells
    ]


def _placed(cell: str, width: int, *, left: bool) -> str:
    return cell.ljust(width) if left else cell.rjust(width)


_DIGITS = 3


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, _DIGITS - whole)}f}"
