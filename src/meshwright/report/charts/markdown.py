"""Charts and tables as Markdown, for an issue, a wiki, a pull request."""

from __future__ import annotations

from meshwright.report.charts.forms import Chart, Grid
from meshwright.report.charts.words import cell_words

__all__ = ["chart_markdown", "grid_markdown"]


def chart_markdown(chart: Chart) -> str:
    """Return a chart's title, its sentence and its numbers."""
    return f"## {chart.title}\n\n{chart.sentence}\n\n{grid_markdown(chart.data)}"


def grid_markdown(grid: Grid) -> str:
    """Return a table; numbers stand right."""
    heading = [column.title for column in grid.columns]
    rule = ["---:" if column.is_number else "---" for column in grid.columns]
    rows = [
        [cell_words(cell, column.digits) for cell, column in zip(row, grid.columns, strict=True)]
        for row in grid.rows
    ]
    return "".join(
        f"| {' | '.join(_cell(cell) for cell in row)} |\n" for row in (heading, rule, *rows)
    )


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")
