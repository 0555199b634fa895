"""Stacked bars as SVG."""

from __future__ import annotations

from meshwright.report.charts.forms import Bar, Stack
from meshwright.report.charts.svg import (
    LETTER,
    WIDTH,
    Scale,
    document,
    legend,
    on_colour,
    text,
    text_width,
    tick_words,
    tipped,
)
from meshwright.report.charts.words import number

__all__ = ["draw_stack"]

HIGH, GAP = 26.0, 10.0
"""Of a bar, and between two."""
MOST_LABEL = 300.0
"""Width that the names of bars may take."""
LEAST_MARK = 0.4
"""Parts that are thinner are not drawn."""


def draw_stack(stack: Stack) -> str:
    """Draw one bar below the other, the parts from left to right, the limit as a line across
    all."""
    parts, top = legend(
        [
            (f'<rect width="12" height="12" rx="2" fill="{s.colour}"/>', s.title)
            for s in stack.series
        ],
        0.0,
    )
    top += 24 if stack.limit is not None else 8
    left = min(MOST_LABEL, max(text_width(bar.label) for bar in stack.bars) + 12)
    most = (
        max(
            [bar.total for bar in stack.bars]
            + [bar.high or 0.0 for bar in stack.bars]
            + [stack.limit or 0.0]
        )
        or 1.0
    )
    along = Scale(0.0, most * 1.02, start=left, end=WIDTH - 86)
    bottom = top + len(stack.bars) * (HIGH + GAP)
    parts += _axis(along, top, bottom, stack.unit)
    for place, bar in enumerate(stack.bars):
        parts += _bar(stack, bar, along, top + place * (HIGH + GAP), left)
    if stack.limit is not None:
        x = along(stack.limit)
        parts.append(f'<path class="limit" d="M{x:.1f} {top - 6:.1f}V{bottom:.1f}"/>')
        parts.append(
            text(min(x + 4, WIDTH), top - 11, stack.limit_words, kind="strong", anchor="end")
        )
    return document(bottom + 38, parts, label=f"{stack.title}. {stack.sentence}")


def _axis(along: Scale, top: float, bottom: float, unit: str) -> list[str]:
    parts = []
    for tick in along.ticks:
        parts.append(f'<path class="rule" d="M{along(tick):.1f} {top - 4:.1f}V{bottom:.1f}"/>')
        parts.append(text(along(tick), bottom + 16, tick_words(tick), kind="soft", anchor="middle"))
    return [*parts, text(WIDTH, bottom + 16, unit, kind="soft", anchor="end")]


def _bar(stack: Stack, bar: Bar, along: Scale, y: float, left: float) -> list[str]:
    most = round((left - 12) / LETTER)
    label = bar.label if len(bar.label) <= most else f"{bar.label[: most - 1]}…"
    parts = [text(0, y + 17, label, kind="ink")]
    done = 0.0
    for series, value in zip(stack.series, bar.values, strict=True):
        start, end = along(done), along(done + value)
        done += value
        if end - start < LEAST_MARK:
            continue
        rect = (
            f'<rect x="{start:.1f}" y="{y:.1f}" width="{end - start:.1f}" height="{HIGH:.0f}"'
            f' fill="{series.colour}" class="gap"/>'
        )
        share = f", {value / bar.total:.1%}" if bar.total else ""
        parts.append(
            tipped(
                rect, f"{bar.label}\n{series.title}: {number(value, digits=4)} {stack.unit}{share}"
            )
        )
        words = number(value)
        if end - start > text_width(words) + 8:
            parts.append(
                text(
                    (start + end) / 2, y + 17, words, kind=on_colour(series.colour), anchor="middle"
                )
            )
    shown = along(done)
    if bar.low is not None and bar.high is not None:
        parts.append(_whisker(along(bar.low), along(bar.high), y + HIGH + 3))
    parts.append(text(shown + 8, y + 17, f"{number(bar.total)} {stack.unit}", kind="strong"))
    return parts


def _whisker(low: float, high: float, y: float) -> str:
    return (
        f'<path class="whisker" d="M{low:.1f} {y - 3:.1f}v6M{low:.1f} {y:.1f}H{high:.1f}M{high:.1f}'
        f' {y - 3:.1f}v6"/>'
    )
