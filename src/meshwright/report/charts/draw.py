"""Any chart as SVG, for a page or alone."""

from __future__ import annotations

from meshwright.report.charts.forms import Chart, Heat, Points, Stack
from meshwright.report.charts.heat import draw_heat
from meshwright.report.charts.points import draw_points
from meshwright.report.charts.stack import draw_stack
from meshwright.report.charts.style import chart_css
from meshwright.report.charts.svg import WIDTH
from meshwright.report.charts.timeline import draw_timeline

__all__ = ["alone", "draw"]

MARGIN = 20.0


def draw(chart: Chart) -> str:
    """Return a chart as an SVG element whose colours a page gives."""
    if isinstance(chart, Stack):
        return draw_stack(chart)
    if isinstance(chart, Points):
        return draw_points(chart)
    return draw_heat(chart) if isinstance(chart, Heat) else draw_timeline(chart)


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
        f' style="font-size:16px">{_escaped(chart.title)}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {tall:.0f}"'
        f' width="{wide:.0f}" height="{tall:.0f}">'
        f"<style>{chart_css('light')}</style>"
        f'<rect width="{wide:.0f}" height="{tall:.0f}" class="ground"/>{heading}{placed}</svg>\n'
    )


def _escaped(words: str) -> str:
    from html import escape

    return escape(words)
