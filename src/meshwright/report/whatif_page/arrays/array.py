"""An array: a flat list of plain numbers, with a shape and a kind."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from itertools import accumulate, chain
from math import prod
from typing import Any

from meshwright.report.whatif_page.arrays.kinds import AS, KIND_OF, TYPES, common
from meshwright.report.whatif_page.arrays.places import (
    Indices,
    Way,
    crossed,
    offsets,
    place_in,
    stretched,
    strides_of,
)
from meshwright.report.whatif_page.arrays.sums import (
    Fold,
    larger,
    largest,
    pairwise,
    rows_of,
    smaller,
    smallest,
)

__all__ = ["array", "asarray", "by_row", "ndarray", "stretch"]


class ndarray:
    """Numbers in rows: a flat list, a shape and a kind."""

    __slots__ = ("kind", "shape", "values")

    def __init__(self, values: list[Any], shape: tuple[int, ...], kind: str) -> None:
        self.values, self.shape, self.kind = values, shape, kind

    # ---- what it is

    @property
    def size(self) -> int:
        """How many numbers."""
        return len(self.values)

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The kind, as numpy's type."""
        return TYPES[self.kind]

    @property
    def T(self) -> ndarray:
        """The axes in reverse."""
        return self.transpose()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if len(self.shape) == 1:
            return iter(self.values)
        return iter([self[i] for i in range(self.shape[0])])

    def __repr__(self) -> str:
        return f"array({self.tolist()})"

    def _one(self) -> Any:
        if len(self.values) != 1:
            raise ValueError("an array of several numbers is no one number")
        return self.values[0]

    def __float__(self) -> float:
        return float(self._one())

    def __int__(self) -> int:
        return int(self._one())

    def __index__(self) -> int:
        return operator.index(self._one())

    def __bool__(self) -> bool:
        return bool(self._one())

    def item(self, *at: int) -> Any:
        """One number."""
        return self[at] if at else self._one()

    def tolist(self) -> Any:
        """Nested lists."""
        if not self.shape:
            return self.values[0]
        if len(self.shape) == 1:
            return list(self.values)
        return [self[i].tolist() for i in range(self.shape[0])]

    # ---- other shapes and kinds

    def astype(self, kind: Any, **_: Any) -> ndarray:
        """The same numbers of another kind."""
        code = KIND_OF[kind]
        if code == self.kind:
            return ndarray(list(self.values), self.shape, code)
        return ndarray(list(map(AS[code], self.values)), self.shape, code)

    def copy(self) -> ndarray:
        """The same again."""
        return ndarray(list(self.values), self.shape, self.kind)

    def reshape(self, *shape: Any) -> ndarray:
        """The same numbers in other rows."""
        is_nested = len(shape) == 1 and isinstance(shape[0], (tuple, list))
        wanted = tuple(shape[0]) if is_nested else shape
        if -1 in wanted:
            known = -prod(wanted)
            wanted = tuple(len(self.values) // known if n == -1 else n for n in wanted)
        if prod(wanted) != len(self.values):
            raise ValueError(f"shape {self.shape} cannot become {wanted}")
        return ndarray(self.values, tuple(int(n) for n in wanted), self.kind)

    def ravel(self) -> ndarray:
        """One row."""
        return ndarray(self.values, (len(self.values),), self.kind)

    flatten = ravel

    def transpose(self, *axes: int) -> ndarray:
        """The axes in another order, by default in reverse."""
        if len(self.shape) < 2:
            return self
        order = axes or tuple(range(len(self.shape)))[::-1]
        strides = strides_of(self.shape)
        shape = tuple(self.shape[a] for a in order)
        at = offsets([[i * strides[a] for i in range(self.shape[a])] for a in order])
        return ndarray([self.values[i] for i in at], shape, self.kind)

    # ---- selections

    def __getitem__(self, key: Any) -> Any:
        if type(key) is int and len(self.shape) == 1:
            return self.values[key]
        at, shape = _selected(self.shape, key)
        if not shape and key is not Ellipsis:
            return self.values[at[0]]
        values = self.values
        return ndarray([values[i] for i in at], shape, self.kind)

    def __setitem__(self, key: Any, value: Any) -> None:
        at, shape = _selected(self.shape, key)
        given = stretch(asarray(value), shape).values
        as_kind = AS[self.kind]
        for i, number in zip(at, given, strict=True):
            self.values[i] = as_kind(number)

    def squeeze(self) -> ndarray:
        """Without axes of one."""
        return ndarray(self.values, tuple(n for n in self.shape if n != 1), self.kind)

    def take(self, index: Any, axis: int | None = None) -> Any:
        """Numbers by their places."""
        if axis is not None:
            return self[(slice(None),) * (axis % self.ndim) + (index,)]
        places = asarray(index)
        values = self.values
        return ndarray([values[i] for i in places.values], places.shape, self.kind)

    # ---- sums and the like

    def sum(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Any:
        """Added in numpy's order."""
        kind = KIND_OF[dtype] if dtype else ("f" if self.kind == "f" else "i")
        return _folded(self, axis, keepdims, kind, _SUM)

    def prod(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Multiplied."""
        return _folded(self, axis, keepdims, "f" if self.kind == "f" else "i", _PRODUCT)

    def max(self, axis: Any = None, *, keepdims: bool = False, initial: Any = None) -> Any:
        """The largest."""
        return _folded(self, axis, keepdims, self.kind, Fold(largest, larger, initial))

    def min(self, axis: Any = None, *, keepdims: bool = False, initial: Any = None) -> Any:
        """The smallest."""
        return _folded(self, axis, keepdims, self.kind, Fold(smallest, smaller, initial))

    def any(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Whether one is true."""
        return _folded(self, axis, keepdims, "b", _ANY)

    def all(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Whether all are true."""
        return _folded(self, axis, keepdims, "b", _ALL)

    def mean(self, axis: Any = None) -> Any:
        """The sum by the count."""
        return self.sum(axis=axis) / (self.size if axis is None else self.shape[axis])

    def argmax(self, axis: int | None = None) -> Any:
        """The first place of the largest."""
        return _chosen(self, axis, lambda row: row.index(max(row)))

    def argmin(self, axis: int | None = None) -> Any:
        """The first place of the smallest."""
        return _chosen(self, axis, lambda row: row.index(min(row)))

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> ndarray:
        """Sums so far."""
        kind = "f" if self.kind == "f" else "i"
        if axis is None or self.ndim == 1:
            return ndarray(list(accumulate(map(AS[kind], self.values))), (self.size,), kind)
        return by_row(self, axis, lambda row: list(accumulate(row)), kind)

    def argsort(self, axis: int = -1, kind: Any = None, stable: Any = None) -> ndarray:
        """Places in rising order; equals keep theirs."""
        return by_row(self, axis, lambda row: sorted(range(len(row)), key=row.__getitem__), "i")

    def nonzero(self) -> tuple[ndarray, ...]:
        """Places of what is not nought, one array an axis."""
        flat = [i for i, value in enumerate(self.values) if value]
        strides = strides_of(self.shape)
        return tuple(
            ndarray([i // stride % count for i in flat], (len(flat),), "i")
            for stride, count in zip(strides, self.shape, strict=True)
        )

    def tobytes(self) -> bytes:
        """Of bytes, the bytes."""
        return bytes(self.values)

    # ---- arithmetic

    def __neg__(self) -> ndarray:
        return ndarray([-v for v in self.values], self.shape, self.kind)

    def __pos__(self) -> ndarray:
        return self.copy()

    def __abs__(self) -> ndarray:
        return ndarray([abs(v) for v in self.values], self.shape, self.kind)

    def __invert__(self) -> ndarray:
        flip = operator.not_ if self.kind == "b" else operator.invert
        return ndarray(list(map(flip, self.values)), self.shape, self.kind)


_SUM, _PRODUCT = Fold(pairwise, operator.add, 0), Fold(prod, operator.mul, 1)
_ANY = Fold(any, lambda a, b: bool(a or b), False)
_ALL = Fold(all, lambda a, b: bool(a and b), True)


def _folded(given: ndarray, axis: Any, keepdims: bool, kind: str, fold: Fold) -> Any:
    if isinstance(axis, tuple):
        for one in sorted((a % given.ndim for a in axis), reverse=True):
            given = _folded(given, one, keepdims, kind, fold)
        return given
    as_kind = AS[kind]
    if axis is None or (given.ndim == 1 and not keepdims):
        return as_kind(fold.all_of(given.values))
    place = axis % given.ndim
    rows, within = rows_of(given.values, given.shape, place)
    once = fold.all_of if within == 1 else fold.one_by_one
    middle = (1,) if keepdims else ()
    shape = (*given.shape[:place], *middle, *given.shape[place + 1 :])
    return ndarray([as_kind(once(row)) for row in rows], shape, kind)


def _chosen(given: ndarray, axis: int | None, place: Callable[[list[Any]], int]) -> Any:
    if axis is None or given.ndim == 1:
        return place(given.values)
    axis %= given.ndim
    rows, _ = rows_of(given.values, given.shape, axis)
    return ndarray(list(map(place, rows)), given.shape[:axis] + given.shape[axis + 1 :], "i")


def by_row(
    given: ndarray, axis: int, change: Callable[[list[Any]], list[Any]], kind: str
) -> ndarray:
    """Put another row in the place of each row along an axis."""
    if given.ndim == 1:
        found = list(change(given.values))
        return ndarray(found, (len(found),), kind)
    axis %= given.ndim
    rows, within = rows_of(given.values, given.shape, axis)
    changed = [change(row) for row in rows]
    length = len(changed[0]) if changed else 0
    blocks = [changed[start : start + within] for start in range(0, len(changed), within)]
    values = [row[i] for block in blocks for i in range(length) for row in block]
    return ndarray(values, (*given.shape[:axis], length, *given.shape[axis + 1 :]), kind)


def _selected(shape: tuple[int, ...], key: Any) -> tuple[list[int], tuple[int, ...]]:
    """Return the flat places that a key selects, and their shape."""
    parts = [
        asarray(part) if isinstance(part, (list, range)) else part
        for part in (key if isinstance(key, tuple) else (key,))
    ]
    spoken = sum(
        part.ndim if isinstance(part, ndarray) and part.kind == "b" else 1
        for part in parts
        if part is not None and part is not Ellipsis
    )
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    parts[at : at + 1] = [slice(None)] * (len(shape) - spoken)
    strides, axis = strides_of(shape), 0
    ways: list[Way | Indices] = []
    for part in parts:
        if part is None:
            ways.append(Way([0], is_kept=True))
            continue
        found = _ways(part, shape[axis:], strides[axis:])
        ways += found
        axis += len(found)
    return crossed(ways)


def _ways(part: Any, shape: tuple[int, ...], strides: list[int]) -> list[Way | Indices]:
    """Return the ways along the axes that one part of a key speaks of."""
    count, stride = shape[0], strides[0]
    if isinstance(part, slice):
        return [Way([i * stride for i in range(*part.indices(count))], is_kept=True)]
    if isinstance(part, ndarray) and part.kind == "b":
        return [
            Indices([i * step for i in found.values], found.shape)
            for found, step in zip(part.nonzero(), strides, strict=False)
        ]
    if isinstance(part, ndarray) and part.shape:
        return [Indices([place_in(i, count) * stride for i in part.values], part.shape)]
    return [Way([place_in(operator.index(part), count) * stride], is_kept=False)]


def stretch(given: Any, shape: Any) -> ndarray:
    """The same numbers in a wider shape."""
    own = asarray(given)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if own.shape == shape:
        return own
    if len(own.values) == 1:
        return ndarray(own.values * prod(shape), shape, own.kind)
    return ndarray(stretched(own.values, own.shape, shape), shape, own.kind)


def array(given: Any, dtype: Any = None, copy: Any = True) -> ndarray:
    """An array of its own, of numbers, lists of them, or arrays."""
    values, shape = _flat(given)
    if dtype is not None:
        kind = KIND_OF[dtype]
    elif isinstance(given, ndarray):
        kind = given.kind
    else:
        kind = common(*({KIND_OF[type(value)] for value in values} or {"f"}))
    return ndarray(list(map(AS[kind], values)), shape, kind)


def asarray(given: Any, dtype: Any = None) -> ndarray:
    """An array; the same one where it is one already."""
    if isinstance(given, ndarray) and (dtype is None or KIND_OF[dtype] == given.kind):
        return given
    return array(given, dtype)


def _flat(given: Any) -> tuple[list[Any], tuple[int, ...]]:
    if isinstance(given, ndarray):
        return given.values, given.shape
    if not isinstance(given, (list, tuple, range)):
        return [given], ()
    if not any(isinstance(one, (list, tuple, range, ndarray)) for one in given):
        return list(given), (len(given),)
    parts = [_flat(one) for one in given]
    shapes = {shape for _, shape in parts}
    if len(shapes) != 1:
        raise ValueError("rows of several lengths")
    return list(chain.from_iterable(values for values, _ in parts)), (len(parts), *shapes.pop())
