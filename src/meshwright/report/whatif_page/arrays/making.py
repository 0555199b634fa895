"""Arrays made, joined, cut, sorted and searched."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from itertools import repeat as _again
from math import prod
from typing import Any

from meshwright.report.whatif_page.arrays.array import array, asarray, by_row, ndarray, stretch
from meshwright.report.whatif_page.arrays.elementwise import abs_, add, multiply, subtract
from meshwright.report.whatif_page.arrays.kinds import AS, KIND_OF, common, uint8
from meshwright.report.whatif_page.arrays.sums import rows_of

__all__ = [
    "Rows",
    "append",
    "arange",
    "argpartition",
    "bincount",
    "concatenate",
    "count_nonzero",
    "diff",
    "empty",
    "empty_like",
    "eye",
    "flatnonzero",
    "fromiter",
    "full",
    "full_like",
    "insert",
    "interp",
    "isclose",
    "lexsort",
    "linspace",
    "median",
    "nonzero",
    "ones",
    "ones_like",
    "put_along_axis",
    "r_",
    "repeat",
    "searchsorted",
    "shape_of",
    "sort",
    "split",
    "stack",
    "take_along_axis",
    "tile",
    "unique",
    "zeros",
    "zeros_like",
]


def fromiter(given: Iterable[Any], dtype: Any, count: int = -1) -> ndarray:
    """Of what comes one by one."""
    return array(list(given), dtype)


def full(shape: Any, value: Any, dtype: Any = None) -> ndarray:
    """The same number everywhere."""
    wanted = (shape,) if isinstance(shape, int) else tuple(shape)
    code = KIND_OF[dtype] if dtype else asarray(value).kind
    given = stretch(asarray(value), wanted)
    return ndarray(list(map(AS[code], given.values)), wanted, code)


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    """Noughts."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float) -> ndarray:
    """Ones."""
    return full(shape, 1, dtype)


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """Noughts; of bytes none at all, as the search makes such a block only to free it."""
    return ndarray([], (0,), "i") if dtype is uint8 else zeros(shape, dtype)


def full_like(like: Any, value: Any, dtype: Any = None) -> ndarray:
    """The same number in the shape of another."""
    array_ = asarray(like)
    return full(array_.shape, value, dtype or array_.dtype)


def zeros_like(like: Any, dtype: Any = None) -> ndarray:
    """Noughts in the shape of another."""
    return full_like(like, 0, dtype)


def ones_like(like: Any, dtype: Any = None) -> ndarray:
    """Ones in the shape of another."""
    return full_like(like, 1, dtype)


empty_like = zeros_like


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:
    """Numbers one after another."""
    if stop is None:
        start, stop = 0, start
    values: list[Any] = [start + i * step for i in range(max(0, math.ceil((stop - start) / step)))]
    return array(values, dtype or (float if isinstance(start + step, float) else int))


def eye(count: int) -> ndarray:
    """Ones on the diagonal."""
    return array([[float(i == j) for j in range(count)] for i in range(count)])


# ---- joining and cutting


def concatenate(given: Any, axis: int = 0) -> ndarray:
    """One after another."""
    arrays = [asarray(g) for g in given]
    kind = common(*(a.kind for a in arrays))
    axis %= arrays[0].ndim
    shape = list(arrays[0].shape)
    shape[axis] = sum(a.shape[axis] for a in arrays)
    outer = prod(arrays[0].shape[:axis])
    lengths = [prod(a.shape[axis:]) for a in arrays]
    values = [
        v
        for block in range(outer)
        for a, n in zip(arrays, lengths, strict=True)
        for v in a.values[block * n : (block + 1) * n]
    ]
    return ndarray(list(map(AS[kind], values)), tuple(shape), kind)


def stack(given: Any, axis: int = 0) -> ndarray:
    """One beside another, along an axis of its own."""
    arrays = [asarray(g) for g in given]
    axis %= arrays[0].ndim + 1
    return concatenate([a.reshape(*a.shape[:axis], 1, *a.shape[axis:]) for a in arrays], axis=axis)


def append(given: Any, more: Any) -> ndarray:
    """With more at the end."""
    return concatenate([asarray(given).ravel(), asarray(more).ravel()])


def insert(given: Any, places: Any, values: Any) -> ndarray:
    """With numbers put in before places of the old row."""
    old, at = asarray(given), asarray(places)
    new = stretch(asarray(values), at.shape)
    order = sorted(range(at.size), key=at.values.__getitem__)
    found: list[Any] = []
    done = 0
    for i in order:
        found.extend(old.values[done : at.values[i]])
        done = at.values[i]
        found.append(new.values[i])
    return ndarray(found + old.values[done:], (old.size + at.size,), old.kind)


def repeat(given: Any, counts: Any, axis: int | None = None) -> ndarray:
    """Each some times."""
    array_ = asarray(given)
    if axis is not None and array_.ndim > 1:
        index = repeat(arange(array_.shape[axis]), counts)
        return array_.take(index, axis=axis)  # type: ignore[no-any-return]
    times = stretch(asarray(counts), (array_.size,)).values
    values = [v for v, n in zip(array_.values, times, strict=True) for v in _again(v, n)]
    return ndarray(values, (len(values),), array_.kind)


def tile(given: Any, times: Any) -> ndarray:
    """All some times."""
    array_ = asarray(given)
    return ndarray(array_.values * int(times), (array_.size * int(times),), array_.kind)


def diff(given: Any, axis: int = -1, prepend: Any = None) -> ndarray:
    """From each to the next."""
    rows = asarray(given)
    if prepend is not None:
        place = axis % rows.ndim
        first = full((*rows.shape[:place], 1, *rows.shape[place + 1 :]), prepend)
        rows = concatenate([first, rows], axis=place)
    return by_row(rows, axis, lambda row: [b - a for a, b in pairwise(row)], rows.kind)


def sort(given: Any, axis: int = -1) -> ndarray:
    """In rising order."""
    array_ = asarray(given)
    return by_row(array_, axis, sorted, array_.kind)


def unique(
    given: Any, return_index: bool = False, return_inverse: bool = False, axis: int | None = None
) -> Any:
    """Each number once, or each row (`axis=0`) or column (`axis=1`), in rising order."""
    array_ = asarray(given).T if axis == 1 else asarray(given)
    by_rows = axis is not None and array_.ndim == 2
    each = [tuple(row) for row in array_.tolist()] if by_rows else array_.values
    first: dict[Any, int] = {}
    for i, value in enumerate(each):
        first.setdefault(value, i)
    found = sorted(first)
    values = array([list(row) for row in found] if by_rows else found, array_.dtype)
    answers: list[Any] = [values.T if axis == 1 else values]
    if return_index:
        answers.append(array([first[value] for value in found], int))
    if return_inverse:
        place = {value: i for i, value in enumerate(found)}
        inverse = array([place[value] for value in each], int)
        answers.append(inverse if by_rows else inverse.reshape(array_.shape))
    return tuple(answers) if len(answers) > 1 else answers[0]


def bincount(given: Any) -> ndarray:
    """How often each whole number from nought stands there."""
    counts = [0] * (max(asarray(given).values, default=-1) + 1)
    for value in asarray(given).values:
        counts[value] += 1
    return ndarray(counts, (len(counts),), "i")


def flatnonzero(given: Any) -> ndarray:
    """Places of what is not nought."""
    return asarray(given).ravel().nonzero()[0]


def nonzero(given: Any) -> tuple[ndarray, ...]:
    """Places of what is not nought, an array an axis."""
    return asarray(given).nonzero()


def count_nonzero(given: Any, axis: Any = None) -> Any:
    """How many are not nought."""
    return asarray(given).astype(bool).sum(axis=axis)


def interp(x: Any, xp: Any, fp: Any, left: float | None = None) -> Any:
    """On the straight lines between points; before the first `left`, or its own value."""
    at, px, py = asarray(x), asarray(xp).values, asarray(fp).values
    first = float(py[0]) if left is None else left
    values = [first if v < px[0] else _between(float(v), px, py) for v in at.values]
    return ndarray(values, at.shape, "f")


def _between(x: float, px: list[float], py: list[float]) -> float:
    if math.isnan(x):
        return x
    if x >= px[-1]:
        return float(py[-1])
    j = bisect_right(px, x) - 1
    if px[j] == x:
        return float(py[j])
    slope = (py[j + 1] - py[j]) / (px[j + 1] - px[j])
    return slope * (x - px[j]) + py[j]


def searchsorted(rows: Any, x: Any, side: str = "left") -> Any:
    """Where each would have to stand."""
    values, find = asarray(rows).values, bisect_left if side == "left" else bisect_right
    if not isinstance(x, ndarray):
        return find(values, x)
    return ndarray([find(values, v) for v in x.values], x.shape, "i")


def take_along_axis(given: Any, index: Any, axis: int) -> ndarray:
    """Of each row, the places that another array's row says."""
    array_, at = asarray(given), asarray(index)
    rows, _ = rows_of(array_.values, array_.shape, axis % array_.ndim)
    wanted, _ = rows_of(at.values, at.shape, axis % at.ndim)
    picked = [[r[i] for i in w] for r, w in zip(rows, wanted, strict=True)]
    turn = iter(picked)
    return by_row(at, axis, lambda _: next(turn), array_.kind)


def put_along_axis(given: ndarray, index: Any, values: Any, axis: int) -> None:
    """Put numbers in the places of each row that another array's row says."""
    at = asarray(index)
    new = stretch(asarray(values), at.shape)
    rows, _ = rows_of(given.values, given.shape, axis % given.ndim)
    wanted, _ = rows_of(at.values, at.shape, axis % at.ndim)
    put, _ = rows_of(new.values, at.shape, axis % at.ndim)
    for row, places, numbers in zip(rows, wanted, put, strict=True):
        for place, number in zip(places, numbers, strict=True):
            row[place] = number
    turn = iter(rows)
    given.values[:] = by_row(given, axis, lambda _: next(turn), given.kind).values


def split(given: Any, places: Any) -> list[ndarray]:
    """Cut at places."""
    array_ = asarray(given)
    ends = [*asarray(places).values, len(array_)]
    return [array_[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def lexsort(keys: Any) -> ndarray:
    """Order by the last key, then the one before."""
    columns = [asarray(k).values for k in keys][::-1]
    return array(sorted(range(len(columns[0])), key=lambda i: tuple(c[i] for c in columns)), int)


def median(given: Any) -> float:
    """The one in the middle."""
    row = sorted(asarray(given).values)
    middle = len(row) // 2
    return float(row[middle]) if len(row) % 2 else (row[middle - 1] + row[middle]) / 2


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    """Whether two are about the same."""
    return abs_(subtract(a, b)) <= add(multiply(abs_(b), rtol), atol)


def shape_of(given: Any) -> tuple[int, ...]:
    """Its shape."""
    return asarray(given).shape


def argpartition(given: Any, count: int) -> ndarray:
    """Places of which the first are the smallest; here all are in order."""
    return asarray(given).argsort()


def linspace(start: float, stop: float, count: int) -> ndarray:
    """Numbers evenly spread, both ends among them."""
    step = (stop - start) / max(1, count - 1)
    values = [start + i * step for i in range(count)]
    return ndarray([*values[:-1], float(stop)] if count > 1 else values, (count,), "f")


class Rows:
    """`r_[a, b]`: one after another."""

    def __getitem__(self, parts: Any) -> ndarray:
        given = [asarray(part) for part in (parts if isinstance(parts, tuple) else (parts,))]
        return concatenate([part.reshape(part.size) for part in given])


r_ = Rows()
