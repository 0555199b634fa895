"""Heat maps as SVG."""

from __future__ import annotations

from meshwright.report.charts.forms import Heat, HeatCell
from meshwright.report.charts.style import ramp
from meshwright.report.charts.svg import WIDTH, document, on_colour, text, text_width, tipped
from meshwright.report.charts.words import number

__all__ = ["draw_heat"]

HIGH = 40.0
"""Of a cell."""
WIDEST = 110.0
LEFT = 76.0
NEVER = "\u2013"
"""Written into cells that a rule forbids."""


def draw_heat(chart: Heat) -> str:
    """Draw cells from light (best) to dark; those without an answer are hatched, and say why."""
    wide = min(WIDEST, (WIDTH - LEFT) / len(chart.columns))
    values = [cell.value for cells in chart.cells for cell in cells if cell.value is not None]
    best, worst = (min(values), max(values)) if values else (0.0, 0.0)
    parts = [_hatch(chart.key), *_key(chart, best, worst)]
    top = 56.0
    for place, column in enumerate(chart.columns):
        parts.append(
            text(
                LEFT + (place + 0.5) * wide,
                top - 8,
                f"{chart.column_axis} {column}",
                kind="soft",
                anchor="middle",
            )
        )
    for line, (row, cells) in enumerate(zip(chart.rows, chart.cells, strict=True)):
        y = top + line * HIGH
        parts.append(
            text(LEFT - 10, y + HIGH / 2 + 4, f"{chart.row_axis} {row}", kind="soft", anchor="end")
        )
        for place, (column, cell) in enumerate(zip(chart.columns, cells, strict=True)):
            title = f"{chart.row_axis} {row}, {chart.column_axis} {column}"
            parts += _cell(chart, cell, title, LEFT + place * wide, y, wide, best, worst)
    return document(
        top + len(chart.rows) * HIGH + 8, parts, label=f"{chart.title}. {chart.sentence}"
    )


def _hatch(key: str) -> str:
    line = '<path class="hatch" d="M-2 2l4-4M0 8l8-8M6 10l4-4"/>'
    pattern = (
        f'<pattern id="{key}-hatch" width="8" height="8"'
        f' patternUnits="userSpaceOnUse">{line}</pattern>'
    )
    return f"<defs>{pattern}</defs>"


def _key(chart: Heat, best: float, worst: float) -> list[str]:
    """What the colours and the hatching mean."""
    steps = 24
    parts = [text(0, 12, f"{chart.value_title}: {number(best)}", kind="soft")]
    x = text_width(f"{chart.value_title}: {number(best)}") + 8
    for step in range(steps):
        parts.append(
            f'<rect x="{x + 6 * step:.1f}" y="2" width="6.5" height="12"'
            f' fill="{ramp(step / (steps - 1))}"/>'
        )
    x += 6 * steps + 8
    parts.append(text(x, 12, number(worst), kind="soft"))
    x += text_width(number(worst)) + 28
    parts.append(
        f'<rect x="{x:.1f}" y="2" width="24" height="12" class="rule"'
        f' fill="url(#{chart.key}-hatch)" style="fill:url(#{chart.key}-hatch)"/>'
    )
    parts.append(text(x + 32, 12, "does not fit: GiB too much, at the least", kind="soft"))
    x += 32 + text_width("does not fit: GiB too much, at the least") + 20
    parts.append(text(x, 12, NEVER, kind="soft"))
    parts.append(text(x + 12, 12, "breaks a rule", kind="soft"))
    return parts


def _cell(
    chart: Heat,
    cell: HeatCell,
    title: str,
    x: float,
    y: float,
    wide: float,
    best: float,
    worst: float,
) -> list[str]:
    place = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{wide - 2:.1f}" height="{HIGH - 2:.1f}"'
    middle = (x + wide / 2, y + HIGH / 2 + 4)
    if cell.value is None:
        fill = f' style="fill:url(#{chart.key}-hatch)"' if cell.possible else ' style="fill:none"'
        parts = [tipped(f'<rect {place} class="rule"{fill}/>', f"{title}\n{cell.reason}")]
        if not cell.possible:
            return [*parts, text(*middle, NEVER, kind="soft", anchor="middle")]
        if cell.short:
            half = text_width(cell.short) / 2 + 3
            parts.append(
                f'<rect x="{middle[0] - half:.1f}" y="{middle[1] - 13:.1f}" width="{2 * half:.1f}"'
                ' height="18" class="void"/>'
            )
            parts.append(text(*middle, cell.short, kind="soft", anchor="middle"))
        return parts
    colour = ramp((cell.value - best) / (worst - best) if worst > best else 0.0)
    words = number(cell.value)
    tip = "\n".join(
        line
        for line in (title, f"{chart.value_title}: {number(cell.value, digits=4)}", cell.detail)
        if line
    )
    parts = [tipped(f'<rect {place} rx="3" fill="{colour}"/>', tip)]
    parts.append(text(*middle, words, kind=on_colour(colour), anchor="middle"))
    if cell.value == best:
        parts.append(f'<rect {place} rx="3" class="frame"/>')
    return parts
