"""Folding rows of numbers into one each, adding in the order in which numpy adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isnan, prod
from typing import Any

__all__ = ["Fold", "added", "larger", "largest", "pairwise", "rows_of", "smaller", "smallest"]

_LANES = 8
_LONGEST = 128


class Fold:
    """How rows become one number each."""

    __slots__ = ("of_row", "of_two", "start")

    def __init__(
        self, of_row: Callable[[Any], Any], of_two: Callable[[Any, Any], Any], start: Any = None
    ) -> None:
        self.of_row, self.of_two = of_row, of_two
        self.start = start
        """Of no numbers; None where that has no answer."""

    def all_of(self, row: Sequence[Any]) -> Any:
        """Fold a row whose numbers lie side by side."""
        if row:
            return self.of_row(row)
        if self.start is None:
            raise ValueError("nothing to choose from")
        return self.start

    def one_by_one(self, row: Sequence[Any]) -> Any:
        """Fold a row whose numbers lie apart."""
        if not row:
            return self.all_of(row)
        total = row[0]
        for value in row[1:]:
            total = self.of_two(total, value)
        return total


def added(row: Iterable[Any]) -> Any:
    """Add one by one. Python's own `sum` keeps from 3.12 on what rounding loses."""
    total: Any = 0
    for value in row:
        total += value
    return total


def pairwise(row: Sequence[Any]) -> Any:
    """Add as numpy does: eight sums side by side, and halves of what is longer than 128.

    Source: numpy/_core/src/umath/loops_utils.h.src, `pairwise_sum`.
    """
    count = len(row)
    if count < _LANES or type(row[0]) is not float:
        return added(row)
    if count > _LONGEST:
        half = count // 2
        half -= half % _LANES
        return pairwise(row[:half]) + pairwise(row[half:])
    sums, whole = list(row[:_LANES]), count - count % _LANES
    for start in range(_LANES, whole, _LANES):
        for lane in range(_LANES):
            sums[lane] += row[start + lane]
    a, b, c, d, e, f, g, h = sums
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for value in row[whole:]:
        total += value
    return total


def larger(a: Any, b: Any) -> Any:
    """The larger of two; NaN wins."""
    return a if a >= b or isnan(a) else b


def smaller(a: Any, b: Any) -> Any:
    """The smaller of two; NaN wins."""
    return a if a <= b or isnan(a) else b


def largest(row: Sequence[Any]) -> Any:
    """The largest; NaN wins."""
    return next((value for value in row if isnan(value)), max(row))


def smallest(row: Sequence[Any]) -> Any:
    """The smallest; NaN wins."""
    return next((value for value in row if isnan(value)), min(row))


def rows_of(values: list[Any], shape: tuple[int, ...], axis: int) -> tuple[list[list[Any]], int]:
    """Return the rows along an axis, in order, and how far apart their numbers lie."""
    within, count = prod(shape[axis + 1 :]), shape[axis]
    block = count * within
    starts = range(0, len(values), block) if block else range(prod(shape[:axis]))
    return [
        values[start + inner : start + block : within]
        for start in starts
        for inner in range(within)
    ], within
