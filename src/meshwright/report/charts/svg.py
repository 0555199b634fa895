"""Pieces of SVG that all charts are drawn with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from meshwright.report.charts.words import number

if TYPE_CHECKING:
    from meshwright.report.charts.forms import Axis

__all__ = [
    "LETTER",
    "WIDTH",
    "Scale",
    "document",
    "legend",
    "on_colour",
    "scale_of",
    "text",
    "text_width",
    "tick_words",
    "tipped",
]

WIDTH = 920.0
"""Of every chart, in its own units; a page shrinks it to fit."""
LETTER = 6.9
"""Mean width of a letter at 12 units in DejaVu Sans, whose letters are the widest of the fonts that
browsers take."""
LINE = 18.0
"""Height of a line of a legend."""


def text_width(words: str) -> float:
    """Estimate how wide some words are."""
    return LETTER * len(words)


def tipped(mark: str, tip: str) -> str:
    """Give a mark `<.../>` a tip that pointers show."""
    name = mark[1 : mark.index(" ")]
    return f"{mark[:-2]}><title>{escape(tip)}</title></{name}>"


def text(x: float, y: float, words: str, *, kind: str = "ink", anchor: str = "start") -> str:
    """Write words; `kind` is a class of `style.py`."""
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{placed}>{escape(words)}</text>'


def on_colour(colour: str) -> str:
    """Return the class of words that can be read on a colour: dark ones on light (WCAG's relative
    luminance)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "on-light" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "on-dark"


def document(height: float, parts: Iterable[str], *, label: str) -> str:
    """Return an SVG element of the usual width; `label` is what a screen reader says."""
    inside = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}"'
        f' class="chart" role="img" aria-label="{escape(label, quote=True)}">{inside}</svg>'
    )


def legend(entries: Sequence[tuple[str, str]], y: float) -> tuple[list[str], float]:
    """Draw marks with words from y downwards, (mark at 0 0, title) each; return the parts and where
    they end."""
    parts: list[str] = []
    x = 0.0
    for mark, title in entries:
        wide = 22 + text_width(title) + 14
        if x and x + wide > WIDTH:
            x, y = 0.0, y + LINE
        parts.append(
            f'<g transform="translate({x:.1f}'
            f' {y:.1f})">{mark}{text(18, 10, title, kind="soft")}</g>'
        )
        x += wide
    return parts, y + LINE if entries else y


class Scale:
    """From values to places on an axis."""

    def __init__(
        self,
        low: float,
        high: float,
        *,
        start: float,
        end: float,
        log: bool = False,
        whole: bool = False,
    ) -> None:
        """Map low to start and high to end; `whole` keeps ticks between whole numbers away."""
        self._to: Callable[[float], float] = math.log10 if log else float
        self._low, self._high = self._to(low), self._to(high)
        self._start, self._end = start, end
        self.ticks = [
            t
            for t in (_log_ticks if log else _ticks)(low, high)
            if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)
        ]
        if whole:
            self.ticks = [tick for tick in self.ticks if tick == round(tick)]

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        share = (self._to(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)


def scale_of(axis: Axis, values: Sequence[float], *, start: float, end: float) -> Scale:
    """Return a scale that holds some values, with air around them."""
    low, high = min(values), max(values)
    if axis.log:
        air = (high / low) ** 0.06 if high > low else 2.0
        return Scale(low / air, high * air, start=start, end=end, log=True)
    if axis.from_zero:
        return Scale(0.0, 1.08 * high, start=start, end=end)
    air = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return Scale(low - air, high + air, start=start, end=end, whole=axis.whole)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, about six of them."""
    raw = (high - low) / 6
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [step * k for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten, or powers alone where there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = (1, 2, 5) if len(powers) <= 4 else (1,)
    return [m * 10.0**p for p in powers for m in fine]


def tick_words(value: float) -> str:
    """Write the number of a tick."""
    words = number(value, digits=4)
    return words.rstrip("0").rstrip(".") if "." in words else words
