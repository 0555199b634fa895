"""A regular grid of times in logarithms, and lookups between its points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bools", "Floats", "Grid", "Lookup"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_CHUNK = 8192
"""Lookups done at once: what of them is in work stays in the core's own cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """Times read from a measured table."""

    seconds: Floats
    """In the shape that the arguments broadcast to."""
    extrapolated: Bools
    """Where an argument lies outside the measured range."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """Log seconds on the points of a grid.

    Formula:  between points multilinear in the logarithms of arguments and time; below the first
              point of an axis the time of that point, or less by the work where `floor_s` is given;
              above the last point that time * (argument / last point) ** growth of the axis
    Units:    seconds, float64, the shape of the arguments.
    Source:   `scripts/distil_operators.py` writes the points; docs/operators.md.
    Valid:    positive arguments. Monotone in every axis in which the points are.
    Checked:  tests/values/hardware/test_tables.py
    """

    log_axes: tuple[Floats, ...]
    log_seconds: Floats
    """One value per point, shape as the axes."""
    growth: tuple[float, ...]
    """Power of time in each argument beyond the last point: 2 for the sequence of attention, else
    1."""
    floor_s: float | None = None
    """Where given, times below the first points shrink with the work, to this at least."""
    log_beyond: float = 0.0
    """Logarithm of a factor on every time outside the points."""

    def times(self, factor: float, *, beyond: float = 1.0) -> Grid:
        """Return the grid with all times multiplied, outside the points by `beyond` as well."""
        return replace(
            self,
            log_seconds=self.log_seconds + np.log(factor),
            floor_s=None if self.floor_s is None else self.floor_s * factor,
            log_beyond=self.log_beyond + float(np.log(beyond)),
        )

    def lookup(self, *arguments: Floats | float) -> Lookup:
        """Return the times of these arguments, one per axis, broadcast against each other."""
        columns = np.broadcast_arrays(
            *(np.asarray(argument, dtype=np.float64) for argument in arguments)
        )
        shape, size = columns[0].shape, columns[0].size
        flat = [column.ravel() for column in columns]
        if size <= _CHUNK:
            seconds, outside = self._chunk(flat)
        else:
            seconds, outside = np.empty(size), np.empty(size, dtype=np.bool_)
            for start in range(0, size, _CHUNK):
                part = slice(start, start + _CHUNK)
                seconds[part], outside[part] = self._chunk([column[part] for column in flat])
        return Lookup(seconds=seconds.reshape(shape), extrapolated=outside.reshape(shape))

    def _chunk(self, columns: Sequence[Floats]) -> tuple[Floats, Bools]:
        base = np.zeros(columns[0].size, dtype=np.int64)
        shares: list[Floats] = []
        beyond = np.zeros(columns[0].size)
        below = np.zeros(columns[0].size)
        outside = np.zeros(columns[0].size, dtype=np.bool_)
        for axis, growth, column in zip(self.log_axes, self.growth, columns, strict=True):
            place = np.log(column)
            excess = np.maximum(place - axis[-1], 0.0)
            beyond = beyond + growth * excess
            if self.floor_s is not None:
                below = below + growth * np.minimum(place - axis[0], 0.0)
            outside |= (excess > _SAME) | (place < axis[0] - _SAME)
            position = np.interp(place, axis, _counts(axis.size))
            cell = np.minimum(position.astype(np.int64), max(axis.size - 2, 0))
            shares.append(position - cell)
            base = base * axis.size + cell
        seconds = np.exp(self._between(base, shares) + beyond)
        if self.floor_s is not None:
            seconds = np.maximum(seconds * np.exp(below), np.minimum(seconds, self.floor_s))
        if self.log_beyond:
            seconds = seconds * np.exp(self.log_beyond * outside)
        return seconds, outside

    def _between(self, base: NDArray[np.int64], shares: Sequence[Floats]) -> Floats:
        """Interpolate along the last axis, then the one before, and so on."""
        table = self.log_seconds.ravel()
        corners = [table.take(base + offset) for offset in _offsets(self.log_seconds.shape)]
        for share in reversed(shares):
            pairs = zip(corners[::2], corners[1::2], strict=True)
            corners = [low + share * (high - low) for low, high in pairs]
        return corners[0]


_SAME = 1e-9
"""Difference of logarithms below which an argument is on the end point."""


@cache
def _counts(size: int) -> Floats:
    return np.arange(size, dtype=np.float64)


@cache
def _offsets(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Flat distances from the low corner of a cell to all its corners, the last axis fastest; 0
    along an axis of one point."""
    strides = [prod(shape[axis + 1 :]) * (size > 1) for axis, size in enumerate(shape)]
    return tuple(
        sum(c * s for c, s in zip(corner, strides, strict=True))
        for corner in product((0, 1), repeat=len(shape))
    )
