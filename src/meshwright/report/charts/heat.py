"""Heat maps: cells of two axes, light where they are best."""

from __future__ import annotations

from functools import partial

from meshwright.report.charts.forms import Heat, HeatCell
from meshwright.report.charts.svg import (
    WIDTH,
    document,
    legend,
    number,
    on_colour,
    ramp,
    text,
    text_width,
    tipped,
)

__all__ = ["draw_heat"]

soft = partial(text, kind="soft")
HIGH = 40.0
"""Of a cell."""
WIDEST = 110.0
LEFT = 62.0
NEVER = "\u2013"
"""Written into cells that a rule forbids."""


def draw_heat(chart: Heat, wide: float = WIDTH) -> str:
    """Draw cells from light (best) to dark; those without an answer are hatched, and say why."""
    each = min(WIDEST, (wide - LEFT) / len(chart.columns))
    values = [cell.value for cells in chart.cells for cell in cells if cell.value is not None]
    best, worst = (min(values), max(values)) if values else (0.0, 0.0)
    parts, top = _key(chart, best, worst, wide)
    top += 26.0
    for place, column in enumerate(chart.columns):
        words = f"{chart.column_axis} {column}"
        words = words if text_width(words) < each else str(column)
        parts.append(soft(LEFT + (place + 0.5) * each, top - 8, words, anchor="middle"))
    for line, (row, cells) in enumerate(zip(chart.rows, chart.cells, strict=True)):
        y = top + line * HIGH
        parts.append(soft(LEFT - 10, y + HIGH / 2 + 4, f"{chart.row_axis} {row}", anchor="end"))
        for place, (column, cell) in enumerate(zip(chart.columns, cells, strict=True)):
            title = f"{chart.row_axis} {row}, {chart.column_axis} {column}"
            x = LEFT + place * each
            parts += _cell(chart, cell, title, (x, y, each), (best, worst))
    high = top + len(chart.rows) * HIGH + 8
    return document(high, parts, label=f"{chart.title}. {chart.sentence}", wide=wide)


def _hatch(x: float, y: float, wide: float, high: float) -> str:
    """Lines from the lower left to the upper right, cut at a rectangle's sides; a pattern would do
    on a screen, and fills paper with pictures of a megabyte."""
    lines = []
    for start in range(8, int(wide + high), 8):
        left, low = max(0.0, start - high), min(float(start), high)
        right, top = min(float(start), wide), max(0.0, start - wide)
        lines.append(f"M{x + left:.1f} {y + low:.1f}L{x + right:.1f} {y + top:.1f}")
    return f'<path class="hatch" d="{"".join(lines)}"/>'


def _key(chart: Heat, best: float, worst: float, wide: float) -> tuple[list[str], float]:
    """What the colours and the hatching mean."""
    steps, words = 24, f"{chart.value_title}: {number(best)}"
    parts = [soft(0, 12, words)]
    x = text_width(words) + 8
    for step in range(steps):
        parts.append(
            f'<rect x="{x + 6 * step:.1f}" y="2" width="6.5" height="12"'
            f' fill="{ramp(step / (steps - 1))}"/>'
        )
    parts.append(soft(x + 6 * steps + 8, 12, number(worst)))
    hatched = f'<rect width="14" height="12" class="rule"/>{_hatch(0, 0, 14, 12)}'
    never = soft(4, 10, NEVER)
    entries = [(hatched, "does not fit: GiB too much, at the least"), (never, "breaks a rule")]
    more, top = legend(entries, 22.0, wide)
    return [*parts, *more], top


def _cell(
    chart: Heat,
    cell: HeatCell,
    title: str,
    at: tuple[float, float, float],
    ends: tuple[float, float],
) -> list[str]:
    """One cell at x, y of a width; `ends` are the best and the worst value."""
    (x, y, wide), (best, worst) = at, ends
    place = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{wide - 2:.1f}" height="{HIGH - 2:.1f}"'
    middle = (x + wide / 2, y + HIGH / 2 + 4)
    if cell.value is None:
        parts = [_hatch(x + 1, y + 1, wide - 2, HIGH - 2)] if cell.possible else []
        void = f'<rect {place} class="rule" style="fill:transparent"/>'
        parts.append(tipped(void, f"{title}\n{cell.reason}"))
        if not cell.possible:
            return [*parts, soft(*middle, NEVER, anchor="middle")]
        if cell.short:
            half = text_width(cell.short) / 2 + 3
            parts.append(
                f'<rect x="{middle[0] - half:.1f}" y="{middle[1] - 13:.1f}" width="{2 * half:.1f}"'
                ' height="18" class="void"/>'
            )
            parts.append(soft(*middle, cell.short, anchor="middle"))
        return parts
    colour = ramp((cell.value - best) / (worst - best) if worst > best else 0.0)
    words = number(cell.value)
    lines = (title, f"{chart.value_title}: {number(cell.value, digits=4)}", cell.detail)
    tip = "\n".join(filter(None, lines))
    parts = [tipped(f'<rect {place} rx="3" fill="{colour}"/>', tip)]
    parts.append(text(*middle, words, kind=on_colour(colour), anchor="middle"))
    if cell.value == best:
        parts.append(f'<rect {place} rx="3" class="frame"/>')
    return parts
