"""Waterfalls: one row a change, from where the last one ended.

To show one elsewhere: `draw_waterfall(waterfall, wide)` is an SVG that needs `chart_css()` alone.
`parts.lost` makes the values from what `plan` prints.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate

from meshwright.report.charts.forms import Drop, Waterfall
from meshwright.report.charts.svg import (
    LETTER,
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
)

__all__ = ["draw_waterfall"]

soft = partial(text, kind="soft")
ROW = 25.0
BAR = 17.0
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
    bottom = top + rows * ROW
    parts += _axis(chart, along, top, bottom, wide)
    parts += _end(chart, chart.start, along, top, left, wide)
    for place, (drop, level) in enumerate(zip(chart.drops, levels, strict=False), start=1):
        parts += _drop(chart, drop, level, along, top + place * ROW, left, wide)
    parts += _end(chart, chart.end, along, bottom - ROW, left, wide)
    return document(bottom + 30, parts, label=f"{chart.title}. {chart.sentence}", wide=wide)


def _left(chart: Waterfall, wide: float) -> float:
    """Where the plane begins: beside the names, or below them where there is no room."""
    if wide <= NARROW:
        return 0.0
    names = [chart.start[0], chart.end[0], *(drop.title for drop in chart.drops)]
    return min(0.4 * wide, max(map(text_width, names)) + 14)


def _scale(chart: Waterfall, levels: list[float], left: float, wide: float) -> Scale:
    low, high = min(*levels, chart.end[1]), max(*levels, chart.end[1])
    if chart.from_zero:
        return Scale(min(0.0, low), high or 1.0, start=left, end=wide - AIR)
    air = 0.08 * (high - low) or 0.01 * abs(high) or 1.0
    return Scale(low - air, high + air, start=left, end=wide - AIR)


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


def _name(words: str, y: float, left: float, wide: float, kind: str) -> str:
    """Write a row's name beside the plane; on a narrow one `_drop` writes it over the bar."""
    most = round((left - 8) / LETTER)
    cut = words if len(words) <= most or not left else f"{words[: most - 1]}…"
    return text(0, y + 13, cut, kind=kind)


def _end(
    chart: Waterfall, of: tuple[str, float], along: Scale, y: float, left: float, wide: float
) -> list[str]:
    words, value = of
    x = along(value)
    figure = f"{number(value, digits=4)} {chart.unit}"
    if chart.from_zero:
        start = along(0.0)
        rect = (
            f'<rect x="{start:.1f}" y="{y:.1f}" width="{max(0.5, x - start):.1f}" height="{BAR}"'
            f' fill="{END_COLOUR}" class="gap"/>'
        )
    else:
        rect = f'<path d="M{x:.1f} {y - 1:.1f}l9 9.5-9 9.5-9-9.5z" fill="{END_COLOUR}"/>'
    parts = [tipped(rect, f"{words}: {figure}")]
    if not left:
        return [*parts, _over(f"{words}: {figure}", x, y, along, wide)]
    parts.append(text(x + (8 if chart.from_zero else 14), y + 13, figure, kind="strong"))
    return [*parts, _name(words, y, left, wide, "strong")]


def _over(words: str, x: float, y: float, along: Scale, wide: float) -> str:
    """Write a name with its figure on whichever side of a mark has room."""
    if x + 14 + text_width(words) <= wide:
        return text(x + 14, y + 13, words, kind="strong")
    return text(wide, y + 13, words, kind="strong halo", anchor="end")


def _drop(
    chart: Waterfall, drop: Drop, level: float, along: Scale, y: float, left: float, wide: float
) -> list[str]:
    start, end = sorted((along(level), along(level + drop.value)))
    long = max(1.0, end - start)
    if drop.value < 0:
        rect = _hollow(start + 0.75, y + 0.75, max(0.5, long - 1.5), BAR - 1.5, drop.colour)
    else:
        rect = (
            f'<rect x="{start:.1f}" y="{y:.1f}" width="{long:.1f}" height="{BAR}"'
            f' fill="{drop.colour}"/>'
        )
    figure = f"{'+' if drop.value >= 0 else MINUS}{number(abs(drop.value))}"
    tip = f"{drop.title}: {figure} {chart.unit}\nso far {number(level + drop.value, digits=4)}"
    joint = along(level + drop.value)
    parts = [tipped(rect, f"{tip} {chart.unit}")]
    parts.append(f'<path class="rule" d="M{joint:.1f} {y + BAR:.1f}v{ROW - BAR:.1f}"/>')
    if left:
        words, kind = figure, "ink"
        parts.append(_name(drop.title, y, left, wide, "ink"))
    else:
        words, kind = f"{drop.title} {figure}", "ink"
    if end + 6 + text_width(words) <= wide:
        return [*parts, text(end + 6, y + 13, words, kind=kind)]
    if start - 6 - text_width(words) >= left:
        return [*parts, text(start - 6, y + 13, words, kind=kind, anchor="end")]
    return [*parts, text(wide, y + 13, words, kind=f"{kind} halo", anchor="end")]


def _hollow(x: float, y: float, wide: float, high: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
        f' fill="none" stroke="{colour}" stroke-width="1.5"/>'
    )
