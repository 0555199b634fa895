"""Stacks: horizontal bars, cut into parts."""

from __future__ import annotations

from functools import partial

from meshwright.report.charts.forms import Bar, Stack
from meshwright.report.charts.svg import (
    NARROW,
    WIDTH,
    Scale,
    document,
    legend,
    number,
    on_colour,
    text,
    text_width,
    tick_words,
    tipped,
    wrapped,
)

__all__ = ["draw_stack"]

soft = partial(text, kind="soft")
STACK_HIGH, GAP = 26.0, 10.0
"""Of a bar, and between two."""
MOST_LABEL = 300.0
"""Width that the names of bars may take."""
LEAST_MARK = 0.4
"""Parts that are thinner are not drawn."""
SAME = '<rect width="12" height="12" rx="2" class="same"/>'
CUT = 74.0
"""Of the piece that stands for what all bars share."""
NAME_HIGH, LINE = 20.0, 15.0
"""Of a name over its bar, and of a line of words."""


def draw_stack(stack: Stack, wide: float = WIDTH) -> str:
    """Draw one bar below the other, parts from left to right, the limit as a line across all."""
    squares = [
        (f'<rect width="12" height="12" rx="2" fill="{s.colour}"/>', s.title) for s in stack.series
    ]
    if stack.shared:
        squares.insert(0, (SAME, "the same in all, cut short"))
    parts, top = legend(squares, 0.0, wide)
    narrow = wide <= NARROW
    if stack.limit is not None:
        lines = wrapped(stack.limit_words, wide) if narrow else [stack.limit_words]
        top += 12 + LINE * len(lines)
    else:
        lines = []
        top += 8
    cut = CUT if stack.shared else 0.0
    base = sum(stack.shared)
    longest = max(text_width(bar.label) for bar in stack.bars)
    left = 0.0 if narrow else min(MOST_LABEL, longest + 12)
    names = [_lines(bar, left, wide, _total(stack, bar)) for bar in stack.bars]
    above = (NAME_HIGH + LINE * (max(map(len, names)) - 1)) * narrow
    ends = [bar.total if stack.shared else max(bar.total, bar.high or 0.0) for bar in stack.bars]
    most = max(*ends, stack.limit or 0.0) or 1.0
    figures = 0.0 if narrow else max(text_width(_total(stack, bar)) for bar in stack.bars) + 14
    end = wide - max(figures, 0.0 if narrow else 86.0)
    along = Scale(base, base + (most - base) * 1.02, start=left + cut, end=end)
    beside = 0.0 if narrow else LINE * (max(map(len, names)) - 1)
    each = max(STACK_HIGH + GAP, beside + GAP + 14) + above
    bottom = top + len(stack.bars) * each
    parts += _axis(along, top, bottom, stack.unit, wide)
    for place, bar in enumerate(stack.bars):
        y = top + place * each
        parts += _names(stack, bar, names[place], along, y, left, wide)
        parts += _bar(stack, bar, along, y + above, left)
    if stack.limit is not None:
        x = along(stack.limit)
        path = f"M{x:.1f} {top - 6:.1f}V{bottom:.1f}"
        if narrow:  # over the bars stand their sums, which no line may cross
            starts = (top + place * each + above - 3 for place in range(len(stack.bars)))
            path = "".join(f"M{x:.1f} {y:.1f}v{STACK_HIGH + 6:.0f}" for y in starts)
        parts.append(f'<path class="limit" d="{path}"/>')
        for line, words in enumerate(reversed(lines)):
            end = min(max(x + 4, text_width(words)), wide)
            y = top - 11 - LINE * line
            parts.append(text(end, y, words, kind="strong", anchor="end"))
    label = f"{stack.title}. {stack.sentence}"
    return document(bottom + 38, parts, label=label, wide=wide)


def _axis(along: Scale, top: float, bottom: float, unit: str, wide: float) -> list[str]:
    parts, last = [], -1e9
    end = wide - text_width(unit) - 8
    for tick in along.ticks:
        x, words = along(tick), tick_words(tick)
        half = text_width(words) / 2
        parts.append(f'<path class="rule" d="M{x:.1f} {top - 4:.1f}V{bottom:.1f}"/>')
        middle = max(x, half)
        if middle - half > last and middle + half < end:
            last = middle + half + 6
            parts.append(soft(middle, bottom + 16, words, anchor="middle"))
    return [*parts, soft(wide, bottom + 16, unit, anchor="end")]


def _total(stack: Stack, bar: Bar) -> str:
    return bar.words or f"{number(bar.total)} {stack.unit}"


def _lines(bar: Bar, left: float, wide: float, total: str) -> list[str]:
    """A bar's name in the lines that it takes: beside the bar, or over it beside the sum."""
    room = left - 12 if left else wide - text_width(total) - 12
    return wrapped(bar.label, room)


def _names(
    stack: Stack, bar: Bar, lines: list[str], along: Scale, y: float, left: float, wide: float
) -> list[str]:
    """A bar's name and its sum: on either side of it, or over it on a narrow page."""
    total = _total(stack, bar)
    if left:
        first = y + 17 - LINE / 2 * (len(lines) - 1)
        figure = text(along(bar.total) + 8, y + 17, total, kind="strong")
    else:
        first = y + 13
        figure = text(wide, y + 13, total, kind="strong", anchor="end")
    names = [text(0, first + LINE * at, words, kind="ink") for at, words in enumerate(lines)]
    return [*names, figure]


def _bar(stack: Stack, bar: Bar, along: Scale, y: float, left: float) -> list[str]:
    done = sum(stack.shared)
    parts = _shared(stack, along, y, left) if stack.shared else []
    same = stack.shared or (0.0,) * len(bar.values)
    for series, value, own in zip(stack.series, bar.values, same, strict=True):
        start, end = along(done), along(done + value - own)
        done += value - own
        if end - start < LEAST_MARK:
            continue
        rect = (
            f'<rect x="{start:.1f}" y="{y:.1f}" width="{end - start:.1f}" height="{STACK_HIGH:.0f}"'
            f' fill="{series.colour}" class="gap"/>'
        )
        share = f", {value / bar.total:.1%}" if bar.total else ""
        more = f"\n{number(value - own)} more than the least of them" if stack.shared else ""
        tip = f"{bar.label}\n{series.title}: {number(value, digits=4)} {stack.unit}{share}{more}"
        parts.append(tipped(rect, tip))
        words = number(value - own)
        if end - start > text_width(words) + 8:
            kind = on_colour(series.colour)
            parts.append(text((start + end) / 2, y + 17, words, kind=kind, anchor="middle"))
    if bar.low is not None and bar.high is not None and not stack.shared:
        parts.append(_whisker(along(bar.low), along(bar.high), y + STACK_HIGH + 3))
    return parts


def _shared(stack: Stack, along: Scale, y: float, left: float) -> list[str]:
    """What all bars have, as a piece of one length with a cut through it."""
    base, middle = sum(stack.shared), left + 0.62 * CUT
    rect = (
        f'<rect x="{left:.1f}" y="{y:.1f}" width="{along(base) - left:.1f}"'
        f' height="{STACK_HIGH:.0f}" class="same"/>'
    )
    cut = f'<path class="cut" d="M{middle + 4:.1f} {y - 1:.1f}l-8 {STACK_HIGH + 2:.0f}"/>'
    tip = f"the same in all: {number(base, digits=4)} {stack.unit}"
    return [tipped(rect, tip), cut, text(left + 5, y + 17, number(base), kind="ink")]


def _whisker(low: float, high: float, y: float) -> str:
    return (
        f'<path class="whisker" d="M{low:.1f} {y - 3:.1f}v6M{low:.1f} {y:.1f}H{high:.1f}M{high:.1f}'
        f' {y - 3:.1f}v6"/>'
    )
