"""Pieces of SVG that all charts are drawn with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from meshwright.report.charts.forms import Axis

__all__ = [
    "BEST",
    "GROUND",
    "LETTER",
    "MEMORY_COLOURS",
    "NARROW",
    "OTHER",
    "SEQUENCE",
    "TIME_COLOURS",
    "WIDTH",
    "Scale",
    "cell_words",
    "chart_css",
    "document",
    "legend",
    "number",
    "on_colour",
    "ramp",
    "scale_of",
    "text",
    "text_width",
    "tick_words",
    "tipped",
    "wrapped",
]

TIME_COLOURS: Mapping[str, str] = {
    # the model's own work: blues
    "matmul": "#1f5fa8",
    "attention": "#5b9bd9",
    "pointwise": "#a6cbee",
    "head": "#3d4f8f",
    "launch": "#8a9cc8",
    "recompute": "#a97bc4",
    "offload": "#8c3b5e",
    # exchanges: orange to yellow
    "tp_comm": "#c2500b",
    "cp_comm": "#e9a13b",
    "ep_comm": "#a33b20",
    "fsdp_comm": "#f2c879",
    "dp_comm": "#d9b400",
    "pp_comm": "#8a6a16",
    # waiting: greys
    "imbalance": "#59636e",
    "bubble": "#a9b2bc",
    # once a step: greens
    "optimizer": "#14806a",
    "overhead": "#7cc4ae",
}
MEMORY_COLOURS: Mapping[str, str] = {
    "weights": "#1f5fa8",
    "gradients": "#5b9bd9",
    "optimizer": "#14806a",
    "activations": "#c2500b",
    "recompute_workspace": "#e9a13b",
    "logits": "#a33b20",
    "communication": "#d9b400",
    "libraries": "#8e5ba6",
    "slack": "#a9b2bc",
    "context": "#59636e",
}
"""Hues follow Okabe and Ito's set for colour-blind readers (blue, orange, yellow, green, grey); kin
differ in lightness."""
SEQUENCE = ("#3b82c9", "#c2500b", "#14806a", "#8e5ba6", "#d9b400", "#59636e")
"""For groups that have no colour of their own."""
BEST = "#c2500b"
OTHER = "#8793a0"
GROUND: Mapping[str, tuple[str, str]] = {
    "page": ("#f5f6f8", "#0e1217"),
    "card": ("#ffffff", "#171c23"),
    "ink": ("#14181f", "#e8ecf1"),
    "soft": ("#4f5a67", "#a8b3bf"),
    "line": ("#dde2e8", "#2c343e"),
    "accent": ("#0a58b5", "#7db8ff"),
}
"""By part of a page: on light ground, on dark."""
_RAMP = ("#00224e", "#2f3e6c", "#575d6d", "#7c7b78", "#a59c74", "#d2c060", "#fee838")
"""Cividis (Nunez, Anderton and Renslow, PLOS ONE 2018), made for colour-blind readers: steps of its
scale, dark to light."""


def ramp(share: float) -> str:
    """Return the colour of a share in [0, 1]; 0, the best, is the lightest."""
    place = (1.0 - min(1.0, max(0.0, share))) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    mixed = [_mix(_RAMP[low], _RAMP[low + 1], i, place - low) for i in (1, 3, 5)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _mix(low: str, high: str, at: int, share: float) -> int:
    first, second = int(low[at : at + 2], 16), int(high[at : at + 2], 16)
    return round(first + share * (second - first))


_RULES = """
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-variant-numeric:tabular-nums}
.ink{fill:@ink}.strong{fill:@ink;font-weight:600}.soft{fill:@soft}.on-light{fill:#14181f}.on-dark{fill:#ffffff}
.rule{stroke:@line;fill:none}.axis{stroke:@soft;fill:none}.limit{stroke:@ink;stroke-width:1.5;stroke-dasharray:5 4;fill:none}
.whisker{stroke:@ink;stroke-width:1.5;fill:none}.gap{stroke:@card;stroke-width:1}.frame{stroke:@ink;stroke-width:2.5;fill:none}
.hatch{stroke:@soft;stroke-width:1.2;fill:none}.void{fill:@card}.ground{fill:@card}
.halo{paint-order:stroke;stroke:@card;stroke-width:4px;stroke-linejoin:round}.letters{font-weight:700}
.same{fill:@page;stroke:@soft}.cut{stroke:@card;stroke-width:4;fill:none}.cell{stroke:@soft;stroke-width:.6}.window{stroke:@ink;stroke-width:1.5;fill:none}.busy{fill:@accent}
"""  # noqa: E501


def chart_css(ground: str | None = None) -> str:
    """Return the rules that draw charts, with a page's variables or colours of one ground."""
    rules = _RULES
    for name, colours in GROUND.items():
        value = f"var(--{name})" if ground is None else colours[ground == "dark"]
        rules = rules.replace(f"@{name}", value)
    return rules.strip()


def number(value: float, *, digits: int = 3) -> str:
    """Write a number in so many significant digits, never as 1e+05; a dash if it is not finite."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    whole = math.floor(math.log10(abs(value))) + 1
    if whole > 15 or whole < -4:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - whole)
    return f"{round(value, digits - whole) if whole > digits else value:,.{decimals}f}"


def cell_words(value: object, digits: int | None) -> str:
    """Write a cell of a table; what is missing is a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if digits is not None else str(value)
    return number(value, digits=digits or 4) if isinstance(value, float) else str(value)


WIDTH = 920.0
"""Of a chart, in its own units; a page shrinks it to fit."""
NARROW = 350.0
"""Of the same chart drawn for a telephone, where it stands in its own size."""
LETTER = 6.9
"""Mean width of a letter at 12 units in DejaVu Sans, whose letters are the widest of the fonts that
browsers take."""
LINE = 18.0
"""Height of a line of a legend."""


def text_width(words: str) -> float:
    """Estimate how wide some words are."""
    return LETTER * len(words)


def wrapped(words: str, wide: float) -> list[str]:
    """Cut words into lines that are no wider."""
    lines: list[str] = []
    for word in words.split():
        if lines and text_width(f"{lines[-1]} {word}") <= wide:
            lines[-1] = f"{lines[-1]} {word}"
        else:
            lines.append(word)
    return lines


def tipped(mark: str, tip: str) -> str:
    """Give a mark `<.../>` a tip that pointers show."""
    name = mark[1 : mark.index(" ")]
    return f"{mark[:-2]}><title>{escape(tip)}</title></{name}>"


def text(x: float, y: float, words: str, *, kind: str = "ink", anchor: str = "start") -> str:
    """Write words; `kind` is a class of `style.py`."""
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}"{placed}>{escape(words)}</text>'


def on_colour(colour: str) -> str:
    """Return the class of words that can be read on a colour, by WCAG's relative luminance."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "on-light" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "on-dark"


def document(
    height: float, parts: Iterable[str], *, label: str, wide: float = WIDTH, words: str = ""
) -> str:
    """Return an SVG element; `label` is what a screen reader says, `words` are more attributes."""
    inside = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {height:.0f}"'
        f' class="chart"{words} role="img" aria-label="{escape(label, quote=True)}">{inside}</svg>'
    )


def legend(
    entries: Sequence[tuple[str, str]], y: float, wide: float = WIDTH
) -> tuple[list[str], float]:
    """Draw (mark at 0 0, title) each from y downwards; return the parts and where they end."""
    parts: list[str] = []
    x = 0.0
    for mark, title in entries:
        taken = 22 + text_width(title) + 14
        if x and x + taken - 14 > wide:
            x, y = 0.0, y + LINE
        parts.append(
            f'<g transform="translate({x:.1f}'
            f' {y:.1f})">{mark}{text(18, 10, title, kind="soft")}</g>'
        )
        x += taken
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
        return Scale(0.0, 1.08 * high or 1.0, start=start, end=end, whole=axis.whole)
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
