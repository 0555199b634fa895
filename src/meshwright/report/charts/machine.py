"""The machine map: every chip of a cluster, the stage that it works on, and its groups.

To show one elsewhere: `draw_machine(machine, wide)` is an SVG that needs `chart_css()`, and
`page/machine.js` (`pictures_script()` of `report.page`), which marks the groups of the chip under
the pointer, or of the one that `meshwrightPictures.machine(box).show(rank)` names. Without the
script the groups of rank 0 are marked. `parts.machine.machine_info(plan, problem)` makes the
values.

A cluster of more than MOST_CELLS chips is drawn by stage, each square standing for several chips,
so that a million chips are as small a picture as a thousand.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from html import escape

from meshwright.report.charts.forms import Machine
from meshwright.report.charts.svg import (
    NARROW,
    WIDTH,
    document,
    legend,
    number,
    on_colour,
    ramp,
    text,
    text_width,
    wrapped,
)
from meshwright.search.groups import Exchange
from meshwright.values.ranks import RANK_AXES, RankAxis, group_members

__all__ = ["LETTERS", "MOST_CELLS", "draw_machine", "first_chips", "marks_of", "unit_of"]

soft = partial(text, kind="soft")
MOST_CELLS = 1024
"""Chips that are drawn one by one."""
MOST_SQUARES = 512
"""Squares of a larger cluster, so large that letters can be read."""
LETTERS: dict[RankAxis, str] = {"tp": "T", "cp": "C", "ep": "E", "dp": "D", "pp": "P"}
"""What stands on the chips of a group; hues alone tell nothing."""
DOT = "\u25cf"
"""On the chip whose groups are shown."""
NAMES: dict[RankAxis, str] = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "dp": "data parallel",
    "pp": "pipeline",
}
SIZES = (26.0, 23.0, 20.0, 18.0, 16.0, 14.0, 12.0, 10.0, 8.0)
"""Of a square, the largest that fits."""
THICK_FROM = 16.0
"""Size of a square from which its frame is thick."""
MOST_HIGH, MOST_NARROW = 480.0, 820.0
"""Of all squares; more on a narrow page, where one scrolls anyway."""
GAP, LABEL = 14.0, 15.0
"""Between boxes, and for the name over each."""
ONE_STAGE = "#3b82c9"


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Squares that belong together: a node, or a stage of a large cluster."""

    title: str
    short: str
    first: int
    cells: int
    columns: int

    @property
    def rows(self) -> int:
        """Lines of squares."""
        return -(-self.cells // self.columns)


def unit_of(machine: Machine) -> int:
    """Return the chips that one square stands for."""
    unit = 1
    if machine.num_chips <= MOST_CELLS:
        return unit
    while sum(-(-stage.count // unit) for stage in machine.stages) > MOST_SQUARES:
        if unit > max(stage.count for stage in machine.stages):
            break
        unit *= 2
    return unit


def first_chips(machine: Machine) -> list[int]:
    """Return the first rank of every square, in the order in which they are drawn."""
    unit = unit_of(machine)
    return [
        start
        for stage in machine.stages
        for start in range(stage.first, stage.first + stage.count, unit)
    ]


def marks_of(machine: Machine, rank: int) -> dict[int, str]:
    """Return the letters of each square that holds a rank of a group of this one; its own has a
    dot."""
    starts = first_chips(machine)
    own = bisect_right(starts, rank) - 1
    found: dict[int, str] = {}
    for axis in RANK_AXES:
        members = group_members(machine.stages, axis, rank)
        for place in {bisect_right(starts, each) - 1 for each in members} - {own}:
            found[place] = found.get(place, "") + LETTERS[axis]
    return {own: DOT, **found}


def stage_colour(stage: int, stages: int) -> str:
    """Return a stage's colour: stages have an order, and so has its lightness."""
    return ONE_STAGE if stages == 1 else ramp(1.0 - (0.12 + 0.83 * stage / (stages - 1)))


def draw_machine(machine: Machine, wide: float = WIDTH) -> str:
    """Draw boxes of squares, then what the groups exchange."""
    stages = len(machine.stages)
    parts, top = _keys(machine, wide)
    boxes = list(_boxes(machine))
    size = _size(boxes, wide)
    placed, top = _placed(boxes, size, wide, top + 8)
    cells = [
        (x, y, place)
        for box, left, high in placed
        for place, (x, y) in enumerate(_squares(box, left, high, size))
    ]
    where = [(x, y) for x, y, _ in cells]
    firsts = [stage.first for stage in machine.stages]
    of = [bisect_right(firsts, start) - 1 for start in first_chips(machine)]
    for stage in dict.fromkeys(of):
        colour = stage_colour(stage, stages)
        rects = "".join(
            f'<rect class="cell" x="{x:g}" y="{y:g}" width="{size - 2:g}" height="{size - 2:g}"/>'
            for (x, y), own in zip(where, of, strict=True)
            if own == stage
        )
        parts.append(f'<g fill="{colour}" data-ink="{on_colour(colour)}">{rects}</g>')
    parts += [_title(box, left, high, size) for box, left, high in placed]
    inks = [on_colour(stage_colour(stage, stages)) for stage in of]
    marks = "".join(
        mark_of(*where[place], size, words, inks[place])
        for place, words in marks_of(machine, 0).items()
    )
    parts.append(f'<g class="marks">{marks}</g>')
    rows, top = _exchanges(machine, wide, top + 10)
    return document(
        top,
        [*parts, *rows],
        label=f"{machine.title}. {machine.sentence}",
        wide=wide,
        words=f' data-machine="{escape(_values(machine, size), quote=True)}"',
    )


def mark_of(x: float, y: float, size: float, words: str, ink: str) -> str:
    """Draw letters on a square, and a frame round it."""
    inner = size - 2
    high = min(13.0, (inner - 2) / max(1.0, 0.62 * len(words)), inner - 1)
    return (
        f'<rect class="frame" x="{x:g}" y="{y:g}" width="{inner:g}" height="{inner:g}"'
        f' style="stroke-width:{2.5 if size >= THICK_FROM else 1.2}px"/>'
        f'<text class="{ink} letters" style="font-size:{high:.1f}px" text-anchor="middle"'
        f' x="{x + inner / 2:.1f}" y="{y + inner / 2 + 0.36 * high:.1f}">{words}</text>'
    )


def _values(machine: Machine, size: float) -> str:
    """What the script needs to find groups by itself."""
    stages = [[s.first, s.tp, s.cp, s.dp, s.ep, s.etp] for s in machine.stages]
    values = {
        "stages": stages,
        "unit": unit_of(machine),
        "box": machine.box,
        "word": machine.box_word,
        "size": size,
    }
    return json.dumps(values, separators=(",", ":"))


def _boxes(machine: Machine) -> Iterator[Box]:
    unit = unit_of(machine)
    if unit > 1:
        for place, stage in enumerate(machine.stages):
            chips = f"chips {stage.first:,} to {stage.first + stage.count - 1:,}"
            cells = -(-stage.count // unit)
            columns = min(cells, 16)
            title = f"stage {place}: {chips}"
            short = f"stage {place}"
            yield Box(title=title, short=short, first=0, cells=cells, columns=columns)
        return
    for place, first in enumerate(range(0, machine.num_chips, machine.box)):
        cells = min(machine.box, machine.num_chips - first)
        own = [
            at
            for at, stage in enumerate(machine.stages)
            if stage.first < first + cells and first < stage.first + stage.count
        ]
        of = f"{own[0]}" if len(own) == 1 else f"{own[0]} to {own[-1]}"
        word = "stage" if len(own) == 1 else "stages"
        yield Box(
            title=f"{machine.box_word} {place}: {word} {of}",
            short=f"{place}: s{own[0]}" if len(own) == 1 else f"{place}: s{own[0]}-{own[-1]}",
            first=first,
            cells=cells,
            columns=_columns(machine.box),
        )


def _columns(chips: int) -> int:
    """Squares of a line of a box: as a node's chips are read, eight; of a rack's wider."""
    if chips <= 8:
        return chips
    return next((n for n in (8, 12, 16, 9, 10) if chips % n == 0 and chips // n <= n), 8)


def _size(boxes: list[Box], wide: float) -> float:
    most = MOST_NARROW if wide <= NARROW else MOST_HIGH
    fits = (size for size in SIZES if _height(boxes, size, wide) <= most)
    return next(fits, SIZES[-1])


def _height(boxes: list[Box], size: float, wide: float) -> float:
    if max(box.columns for box in boxes) * size > wide:
        return float("inf")
    a_line = _a_line(boxes, size, wide)
    lines = [boxes[at : at + a_line] for at in range(0, len(boxes), a_line)]
    return sum(LABEL + max(box.rows for box in line) * size + GAP for line in lines)


def _a_line(boxes: list[Box], size: float, wide: float) -> int:
    widest = max(box.columns for box in boxes) * size
    return max(1, int((wide + GAP) // (widest + GAP)))


def _placed(
    boxes: list[Box], size: float, wide: float, top: float
) -> tuple[list[tuple[Box, float, float]], float]:
    a_line = _a_line(boxes, size, wide)
    widest = max(box.columns for box in boxes) * size
    found = []
    for at in range(0, len(boxes), a_line):
        line = boxes[at : at + a_line]
        found += [(box, place * (widest + GAP), top + LABEL) for place, box in enumerate(line)]
        top += LABEL + max(box.rows for box in line) * size + GAP
    return found, top


def _squares(box: Box, left: float, top: float, size: float) -> Iterator[tuple[float, float]]:
    for place in range(box.cells):
        yield left + place % box.columns * size, top + place // box.columns * size


def _title(box: Box, left: float, top: float, size: float) -> str:
    wide = max(box.columns * size + GAP - 6, 24.0)
    words = next((w for w in (box.title, box.short) if text_width(w) <= wide), "")
    return soft(left, top - 4, words) if words else ""


def _keys(machine: Machine, wide: float) -> tuple[list[str], float]:
    """What colours and letters mean."""
    stages = len(machine.stages)
    entries = []
    if 1 < stages <= 8:
        shown = list(range(stages))
    else:
        shown = [0, stages // 2, stages - 1] if stages > 1 else []
    for stage in shown:
        colour = stage_colour(stage, stages)
        square = f'<rect width="12" height="12" class="cell" fill="{colour}"/>'
        entries.append((square, f"stage {stage}"))
    for axis in RANK_AXES:
        if len(group_members(machine.stages, axis, 0)) > 1:
            letter = f'<text class="strong" x="2" y="11">{LETTERS[axis]}</text>'
            entries.append((letter, f"same {NAMES[axis]} group ({axis})"))
    dot = '<text class="strong" x="1" y="11">' + DOT + "</text>"
    unit = unit_of(machine)
    chosen = "the chip chosen" if unit == 1 else f"the square chosen; each is {unit:,} chips"
    return legend([*entries, (dot, chosen)], 0.0, wide)


def _exchanges(machine: Machine, wide: float, top: float) -> tuple[list[str], float]:
    """One row a kind of exchange: what it waits for, over which link, how much."""
    parts = []
    for one in machine.exchanges:
        parts.append(f'<path class="rule" d="M0 {top:.1f}H{wide:.0f}"/>')
        parts.append(text(4, top + 19, LETTERS[one.axis], kind="strong"))
        head = f"{one.title} ({one.axis})"
        share = f"{100 * one.step_s / machine.step_s:.1f} %"
        waited = f"{number(one.step_s)} s of the step, {share}" if one.step_s else "hidden"
        parts.append(text(26, top + 19, head, kind="strong"))
        if 26 + text_width(head) + 20 + text_width(waited) <= wide:
            parts.append(text(wide, top + 19, waited, kind="strong", anchor="end"))
        else:
            top += 17
            parts.append(text(26, top + 19, waited, kind="ink"))
        for line in wrapped(f"{_sent(one)}; {one.link}", wide - 26):
            top += 17
            parts.append(soft(26, top + 19, line))
        top += 30
    return parts, top + 4


def _sent(one: Exchange) -> str:
    size = one.sent_bytes
    words = f"{number(size / 2**30)} GiB" if size >= 2**30 else f"{number(size / 2**20)} MiB"
    return f"{words} {one.per}"
