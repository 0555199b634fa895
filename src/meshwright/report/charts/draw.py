"""Any chart as SVG, for a page or alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

from meshwright.report.charts.forms import (
    Chart,
    Grid,
    Heat,
    Machine,
    Points,
    Stack,
    Timeline,
    Waterfall,
)
from meshwright.report.charts.heat import draw_heat
from meshwright.report.charts.machine import draw_machine
from meshwright.report.charts.points import draw_points
from meshwright.report.charts.stack import draw_stack
from meshwright.report.charts.svg import WIDTH, cell_words, chart_css
from meshwright.report.charts.timeline import draw_timeline
from meshwright.report.charts.waterfall import draw_waterfall

__all__ = ["alone", "chart_markdown", "draw", "grid_markdown"]

MARGIN = 20.0
_DRAWN: Mapping[type, Callable[..., str]] = {
    Heat: draw_heat,
    Machine: draw_machine,
    Points: draw_points,
    Stack: draw_stack,
    Timeline: draw_timeline,
    Waterfall: draw_waterfall,
}


def draw(chart: Chart, wide: float = WIDTH) -> str:
    """Return a chart as an SVG element whose colours a page gives."""
    return _DRAWN[type(chart)](chart, wide)


def alone(chart: Chart) -> str:
    """Return a chart with its title as an SVG file on light ground."""
    inner = draw(chart)
    high = float(inner.split('viewBox="', 1)[1].split('"', 1)[0].split()[3])
    wide, tall = WIDTH + 2 * MARGIN, high + 2 * MARGIN + 34
    placed = inner.replace(
        "<svg ",
        f'<svg x="{MARGIN:.0f}" y="{MARGIN + 34:.0f}" width="{WIDTH:.0f}" height="{high:.0f}" ',
        1,
    )
    heading = (
        f'<text x="{MARGIN:.0f}" y="{MARGIN + 12:.0f}" class="strong"'
        f' style="font-size:16px">{escape(chart.title)}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {tall:.0f}"'
        f' width="{wide:.0f}" height="{tall:.0f}">'
        f"<style>{chart_css('light')}</style>"
        f'<rect width="{wide:.0f}" height="{tall:.0f}" class="ground"/>{heading}{placed}</svg>\n'
    )


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
    lines = (" | ".join(map(_markdown_cell, row)) for row in (heading, rule, *rows))
    return "".join(f"| {line} |\n" for line in lines)


def _markdown_cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")
