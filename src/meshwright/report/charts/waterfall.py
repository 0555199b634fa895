"""Waterfalls: one row a change, from where the last one ended.

To show one elsewhere: `draw_waterfall(waterfall, wide)` is an SVG that needs `chart_css()` alone.
`parts.lost` makes the values from what `plan` prints.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate

from meshwright.report.charts.forms import Drop, Waterfall
from meshwright.report.charts.svg import (
    NARROW,
    WIDTH,
    Scale,
    document,
    legend,
    number,
    text,
    text_width,
    tick_words,
    tipped,
    wrapped,
)

__all__ = ["draw_waterfall"]

soft = partial(text, kind="soft")
ROW = 25.0
BAR = 17.0
ABOVE = 18.0
"""Of names over their bars, on a narrow page."""
END_COLOUR = "#59636e"
MINUS = "\u2212"
AIR = 78.0
"""At the right, for the last figure."""


def draw_waterfall(chart: Waterfall, wide: float = WIDTH) -> str:
    """Draw the start, every drop, and the end below each other; what is taken away is hollow."""
    filled = f'<rect width="14" height="12" fill="{END_COLOUR}"/>'
    hollow = _hollow(0.5, 0.5, 13, 11, END_COLOUR)
    entries = [(filled, "adds time"), (hollow, "saves time")]
    parts, top = legend(entries if any(d.value < 0 for d in chart.drops) else [], 0.0, wide)
    top += 12
    levels = list(accumulate((drop.value for drop in chart.drops), initial=chart.start[1]))
    left = _left(chart, wide)
    along = _scale(chart, levels, left, wide)
    rows = len(chart.drops) + 2
    row = ROW if left else ROW + ABOVE
    bottom = top + rows * row
    parts += _axis(chart, along, top, bottom, wide)
    parts += _end(chart, chart.start, along, top, left, wide)
    for place, (drop, level) in enumerate(zip(chart.drops, levels, strict=False), start=1):
        parts += _drop(chart, drop, level, along, top + place * row, left, wide)
    parts += _end(chart, chart.end, along, bottom - row, left, wide)
    return document(bottom + 30, parts, label=f"{chart.title}. {chart.sentence}", wide=wide)


def _left(chart: Waterfall, wide: float) -> float:
    """Where the plane begins: behind the names, or at the edge where they stand over their bars."""
    if wide <= NARROW:
        return 0.0
    names = [chart.start[0], chart.end[0], *(drop.title for drop in chart.drops)]
    return min(0.45 * wide, max(map(text_width, names)) + 20)


def _scale(chart: Waterfall, levels: list[float], left: float, wide: float) -> Scale:
    low, high = min(*levels, chart.end[1]), max(*levels, chart.end[1])
    end = wide - (AIR if left else 12.0)
    if chart.from_zero:
        return Scale(min(0.0, low), high or 1.0, start=left, end=end)
    air = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return Scale(low - air, high + air, start=left, end=end)


def _axis(chart: Waterfall, along: Scale, top: float, bottom: float, wide: float) -> list[str]:
    parts = []
    last = -1e9
    for tick in along.ticks:
        words = tick_words(tick)
        if along(tick) - last < text_width(words) + 12:
            continue
        last = along(tick)
        parts.append(f'<path class="rule" d="M{last:.1f} {top - 4:.1f}V{bottom:.1f}"/>')
        parts.append(soft(last, bottom + 15, words, anchor="middle" if last > 20 else "start"))
    return [*parts, soft(wide, bottom + 15, chart.unit, anchor="end")]


def _name(words: str, y: float, left: float, kind: str) -> str:
    """Write a row's name beside the plane, a long one in two lines."""
    lines = wrapped(words, left - 12)
    first = y + 13 - 6.5 * (len(lines) - 1)
    return "".join(text(0, first + 13 * at, line, kind=kind) for at, line in enumerate(lines))


def _end(
    chart: Waterfall, of: tuple[str, float], along: Scale, y: float, left: float, wide: float
) -> list[str]:
    words, value = of
    x = along(value)
    figure = f"{number(value, digits=4)} {chart.unit}"
    at = y if left else y + ABOVE
    if chart.from_zero:
        start = along(0.0)
        rect = (
            f'<rect x="{start:.1f}" y="{at:.1f}" width="{max(0.5, x - start):.1f}" height="{BAR}"'
            f' fill="{END_COLOUR}" class="gap"/>'
        )
    else:
        rect = f'<path d="M{x:.1f} {at - 1:.1f}l9 9.5-9 9.5-9-9.5z" fill="{END_COLOUR}"/>'
    parts = [tipped(rect, f"{words}: {figure}")]
    if not left:
        return [*parts, *_over(words, figure, y, wide, "strong")]
    parts.append(text(x + (8 if chart.from_zero else 14), y + 13, figure, kind="strong"))
    return [*parts, _name(words, y, left, "strong")]


def _over(words: str, figure: str, y: float, wide: float, kind: str) -> list[str]:
    """Write a name and its figure over a bar, where there is no room beside it."""
    return [
        text(0, y + 13, words, kind=kind),
        text(wide, y + 13, figure, kind=kind, anchor="end"),
    ]


def _drop(
    chart: Waterfall, drop: Drop, level: float, along: Scale, y: float, left: float, wide: float
) -> list[str]:
    start, end = sorted((along(level), along(level + drop.value)))
    long, at = max(1.0, end - start), y if left else y + ABOVE
    if drop.value < 0:
        rect = _hollow(start + 0.75, at + 0.75, max(0.5, long - 1.5), BAR - 1.5, drop.colour)
    else:
        rect = (
            f'<rect x="{start:.1f}" y="{at:.1f}" width="{long:.1f}" height="{BAR}"'
            f' fill="{drop.colour}"/>'
        )
    figure = f"{'+' if drop.value >= 0 else MINUS}{number(abs(drop.value))}"
    tip = f"{drop.title}: {figure} {chart.unit}\nso far {number(level + drop.value, digits=4)}"
    joint = along(level + drop.value)
    parts = [tipped(rect, f"{tip} {chart.unit}")]
    parts.append(f'<path class="rule" d="M{joint:.1f} {at + BAR:.1f}v{ROW - BAR:.1f}"/>')
    if not left:
        return [*parts, *_over(drop.title, figure, y, wide, "ink")]
    parts.append(_name(drop.title, y, left, "ink"))
    return [*parts, text(end + 6, y + 13, figure, kind="ink")]


def _hollow(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
        f' fill="none" stroke="{colour}" stroke-width="1.5"/>'
    )
