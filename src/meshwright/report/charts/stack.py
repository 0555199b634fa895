"""Stacks: horizontal bars, cut into parts."""

from __future__ import annotations

from functools import partial
from html import escape

from meshwright.report.charts.forms import Bar, Stack
from meshwright.report.charts.svg import (
    LETTER,
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
NAME_HIGH, LINE = 20.0, 16.0
"""Of a name over its bar, and of a line of words."""


def draw_stack(stack: Stack, wide: float = WIDTH) -> str:
    """Draw one bar below the other, parts from left to right, the limit as a line across all."""
    squares = [
        (f'<rect width="12" height="12" rx="2" fill="{s.colour}"/>', s.title) for s in stack.series
    ]
    parts, top = legend(squares, 0.0, wide)
    narrow = wide <= NARROW
    if stack.limit is not None:
        lines = wrapped(stack.limit_words, wide) if narrow else [stack.limit_words]
        top += 12 + LINE * len(lines)
    else:
        lines = []
        top += 8
    longest = max(text_width(bar.label) for bar in stack.bars)
    left = 0.0 if narrow else min(MOST_LABEL, longest + 12)
    above = NAME_HIGH * narrow
    ends = [max(bar.total, bar.high or 0.0) for bar in stack.bars]
    most = max(*ends, stack.limit or 0.0) or 1.0
    figures = 0.0 if narrow else max(text_width(_total(stack, bar)) for bar in stack.bars) + 14
    along = Scale(0.0, most * 1.02, start=left, end=wide - max(figures, 0.0 if narrow else 86.0))
    each = STACK_HIGH + GAP + above
    bottom = top + len(stack.bars) * each
    parts += _axis(along, top, bottom, stack.unit, wide)
    for place, bar in enumerate(stack.bars):
        y = top + place * each
        parts += _names(stack, bar, along, y, left, wide)
        parts += _bar(stack, bar, along, y + above)
    if stack.limit is not None:
        x = along(stack.limit)
        parts.append(f'<path class="limit" d="M{x:.1f} {top - 6:.1f}V{bottom:.1f}"/>')
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


def _names(stack: Stack, bar: Bar, along: Scale, y: float, left: float, wide: float) -> list[str]:
    """A bar's name and its sum: on either side of it, or over it on a narrow page."""
    total = _total(stack, bar)
    if left:
        most = round((left - 12) / LETTER)
        label = bar.label if len(bar.label) <= most else f"{bar.label[: most - 1]}…"
        total_x = along(bar.total) + 8
        return [
            tipped_text(text(0, y + 17, label, kind="ink"), bar.label),
            text(total_x, y + 17, total, kind="strong"),
        ]
    most = round((wide - text_width(total) - 12) / LETTER)
    label = bar.label if len(bar.label) <= most else f"{bar.label[: most - 1]}…"
    return [
        tipped_text(text(0, y + 13, label, kind="ink"), bar.label),
        text(wide, y + 13, total, kind="strong", anchor="end"),
    ]


def tipped_text(drawn: str, whole: str) -> str:
    """Give words that may have been cut their whole as a tip."""
    return (
        drawn.replace("</text>", f"<title>{escape(whole)}</title></text>")
        if "…" in drawn
        else drawn
    )


def _bar(stack: Stack, bar: Bar, along: Scale, y: float) -> list[str]:
    parts = []
    done = 0.0
    for series, value in zip(stack.series, bar.values, strict=True):
        start, end = along(done), along(done + value)
        done += value
        if end - start < LEAST_MARK:
            continue
        rect = (
            f'<rect x="{start:.1f}" y="{y:.1f}" width="{end - start:.1f}" height="{STACK_HIGH:.0f}"'
            f' fill="{series.colour}" class="gap"/>'
        )
        share = f", {value / bar.total:.1%}" if bar.total else ""
        tip = f"{bar.label}\n{series.title}: {number(value, digits=4)} {stack.unit}{share}"
        parts.append(tipped(rect, tip))
        words = number(value)
        if end - start > text_width(words) + 8:
            kind = on_colour(series.colour)
            parts.append(text((start + end) / 2, y + 17, words, kind=kind, anchor="middle"))
    if bar.low is not None and bar.high is not None:
        parts.append(_whisker(along(bar.low), along(bar.high), y + STACK_HIGH + 3))
    return parts


def _whisker(low: float, high: float, y: float) -> str:
    return (
        f'<path class="whisker" d="M{low:.1f} {y - 3:.1f}v6M{low:.1f} {y:.1f}H{high:.1f}M{high:.1f}'
        f' {y - 3:.1f}v6"/>'
    )
