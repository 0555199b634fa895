"""Where the names of points go: beside their marks, over no other name and no other mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.report.charts.svg import text_width

__all__ = ["Label", "placed_labels"]

HIGH = 14.0
BOLD = 1.12
"""How much wider names are, which are bold."""
"""Of a line of words."""
MARK = 7.0
"""Half the room that a mark takes."""
STEPS = (9.0, 20.0, 34.0, 50.0, 68.0, 90.0, 120.0)
"""How far from its point a name may stand, nearest first."""

Rect = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """A name in its place."""

    words: str
    x: float
    """The end that is nearer to the point, or the middle."""
    y: float
    """Base line."""
    anchor: str
    leader: tuple[float, float, float, float] | None
    """A line from the point to the name, where they are apart."""


def placed_labels(
    points: Sequence[tuple[float, float, str]],
    marks: Sequence[tuple[float, float]],
    plane: Rect,
    *,
    first: Literal["beside", "below"] = "beside",
) -> list[Label]:
    """Return where names can be read; one without room is left out. `marks` are all points; below
    their marks names are clear of a line from left to right."""
    taken = [(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in marks]
    found: list[Label] = []
    for x, y, words in points:
        for rect, leader in _candidates(x, y, BOLD * text_width(words), first):
            if _inside(rect, plane) and not any(_meet(rect, other) for other in taken):
                taken.append(rect)
                found.append(_label(words, rect, leader, x))
                break
    return found


def _label(
    words: str, rect: Rect, leader: tuple[float, float, float, float] | None, x: float
) -> Label:
    """A name in a rectangle, held at the side of its point, as fonts differ in width."""
    if rect[0] >= x:
        at, anchor = rect[0], "start"
    elif rect[2] <= x:
        at, anchor = rect[2], "end"
    else:
        at, anchor = (rect[0] + rect[2]) / 2, "middle"
    return Label(words=words, x=at, y=rect[3] - 3.5, anchor=anchor, leader=leader)


def _candidates(
    x: float, y: float, wide: float, first: Literal["beside", "below"]
) -> Iterator[tuple[Rect, tuple[float, float, float, float] | None]]:
    if first == "below":
        for down in (17.0, -15.0):
            middle = y + down
            yield (x - wide / 2, middle - HIGH / 2, x + wide / 2, middle + HIGH / 2), None
    for step in STEPS:
        for up in (0.0, -step, step):
            for side in (1, -1):
                left = x + step if side > 0 else x - step - wide
                middle = y + up
                rect = (left, middle - HIGH / 2, left + wide, middle + HIGH / 2)
                near = left if side > 0 else left + wide
                leader = None if step == STEPS[0] else (x, y, near, middle)
                yield rect, leader
        for up in (-step, step):
            rect = (x - wide / 2, y + up - HIGH / 2, x + wide / 2, y + up + HIGH / 2)
            yield rect, None if step <= STEPS[1] else (x, y, x, y + up - (up / abs(up)) * HIGH / 2)


def _inside(rect: Rect, plane: Rect) -> bool:
    return (
        plane[0] <= rect[0] and plane[1] <= rect[1] and rect[2] <= plane[2] and rect[3] <= plane[3]
    )


def _meet(one: Rect, other: Rect) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
