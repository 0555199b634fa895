"""Fitting a smooth, monotone surface of log seconds on a regular grid to scattered measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

__all__ = ["HELD_SHARE", "SEED", "Fit", "Held", "Surface", "fit", "misses", "split"]

Floats = NDArray[np.float64]
SEED = 20261
HELD_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Surface:
    """The form of one table."""

    points: tuple[tuple[float, ...], ...]
    """Grid points per axis, rising."""
    growth: tuple[float, ...]
    stiffness: tuple[float, ...]
    """Weight per axis of a difference between neighbours (over the distance of their logarithms)
    against one measured row."""
    rising: tuple[bool, ...]
    """In which axes time can't fall."""
    base: Callable[..., Floats]
    """Log seconds of a roofline; the surface smooths what measurements differ from it."""
    twist: tuple[float, ...] = ()
    """Weight per pair of axes, (0, 1), (0, 2), ..., of a difference of differences: the waste of
    partly filled waves of tiles hangs on two dimensions of a product and little on the third, so
    what one row shows holds for its neighbours along that."""
    doubt: float | None = None
    """Log miss at which a row counts half (Cauchy's weights), for sources in which single kernels
    ran badly; None trusts all alike."""
    shortest: float = 0.2
    """Least distance of logarithms between neighbours for the stiffness: 4096 and 4097 rows may
    differ by a whole wave of tiles."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Rows kept out of the fit."""

    columns: tuple[Floats, ...]
    seconds: Floats
    """As measured."""
    added: Floats
    """What the measurement holds beside the operator, and the table leaves out."""
    large: NDArray[np.bool_]
    """Rows of the size that training runs."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fitted table and what it can be judged by."""

    surface: Surface
    log_seconds: Floats
    held: Held
    rows: int
    """Rows fitted."""
    moved: Floats
    """By how much (log) each point moved to make the surface monotone."""
    facts: dict[str, object] = field(default_factory=dict)


def split(count: int) -> NDArray[np.bool_]:
    """Which of the rows, in the order of their keys, are kept out of the fit."""
    held = np.zeros(count, dtype=np.bool_)
    held[np.random.default_rng(SEED).permutation(count)[: round(HELD_SHARE * count)]] = True
    return held


def fit(surface: Surface, columns: Sequence[Floats], seconds: Floats) -> tuple[Floats, Floats]:
    """Return log seconds on the grid, and how far each point moved to be monotone."""
    shape = tuple(len(points) for points in surface.points)
    place, share = _weights(surface.points, columns)
    rest = np.log(seconds) - surface.base(*columns)
    mean = float(np.median(rest))
    trust = np.ones(len(rest))
    solved = _solve(surface, shape, place, share, rest - mean, trust)
    for _ in range(_ROUNDS if surface.doubt else 0):
        miss = rest - mean - (solved.ravel()[place] * share).sum(axis=0)
        trust = 1 / (1 + (miss / (surface.doubt or 1.0)) ** 2)
        solved = _solve(surface, shape, place, share, rest - mean, trust)
    mesh = np.meshgrid(
        *(np.asarray(points, dtype=np.float64) for points in surface.points), indexing="ij"
    )
    table = solved + mean + surface.base(*mesh)
    level = _monotone(table, surface.rising)
    return level, level - table


def misses(surface: Surface, table: Floats, columns: Sequence[Floats], seconds: Floats) -> Floats:
    """Log of measured over fitted."""
    place, share = _weights(surface.points, columns)
    return np.asarray(np.log(seconds) - (table.ravel()[place] * share).sum(axis=0))


def _weights(
    points: Sequence[Sequence[float]], columns: Sequence[Floats]
) -> tuple[NDArray[np.int64], Floats]:
    """Flat places and multilinear shares of the corners around each row: (corners, rows)."""
    place = np.zeros((1, len(columns[0])), dtype=np.int64)
    share = np.ones((1, len(columns[0])))
    for axis, column in zip(points, columns, strict=True):
        position = np.interp(
            np.log(column),
            np.log(np.asarray(axis, dtype=np.float64)),
            np.arange(len(axis), dtype=np.float64),
        )
        cell = np.minimum(position.astype(np.int64), max(len(axis) - 2, 0))
        part = position - cell
        step = 1 if len(axis) > 1 else 0
        place = np.concatenate([place * len(axis) + cell, place * len(axis) + cell + step])
        share = np.concatenate([share * (1 - part), share * part])
    return place, share


_ROUNDS = 6


def _solve(
    surface: Surface,
    shape: tuple[int, ...],
    place: NDArray[np.int64],
    share: Floats,
    target: Floats,
    trust: Floats,
) -> Floats:
    """Conjugate gradients on: squared misses of the rows + stiffness * squared differences of
    neighbours."""
    size = int(np.prod(shape))
    inverse_gaps = [
        1 / np.maximum(np.diff(np.log(points)), surface.shortest) for points in surface.points
    ]
    springs = [weight * gaps for weight, gaps in zip(surface.stiffness, inverse_gaps, strict=True)]
    pairs = list(zip(combinations(range(len(shape)), 2), surface.twist, strict=False))

    def product(x: Floats) -> Floats:
        grid, pull = x.reshape(shape), np.zeros(shape)
        for axis, spring in enumerate(springs):
            pull += _spread(_along(spring, axis, len(shape)) * np.diff(grid, axis=axis), axis)
        for (one, two), weight in pairs:
            torque = (
                weight
                * _along(inverse_gaps[one], one, len(shape))
                * _along(inverse_gaps[two], two, len(shape))
            )
            pull += _spread(_spread(torque * np.diff(np.diff(grid, axis=one), axis=two), two), one)
        rows = np.bincount(
            place.ravel(), (share * trust * (x[place] * share).sum(axis=0)).ravel(), size
        )
        return np.asarray(rows + pull.ravel() + _ANCHOR * x)

    right = np.bincount(place.ravel(), (share * trust * target).ravel(), size)
    weight = (
        np.bincount(place.ravel(), (share**2 * trust).ravel(), size)
        + _diagonal(shape, springs)
        + 4 * sum(surface.twist)
        + _ANCHOR
    )
    return _conjugate(product, right, 1 / weight).reshape(shape)


_ANCHOR = 1e-6
"""Pull of every point towards the roofline, so that no point is free."""


def _along(values: Floats, axis: int, dims: int) -> Floats:
    return values.reshape([-1 if i == axis else 1 for i in range(dims)])


def _spread(differences: Floats, axis: int) -> Floats:
    """The transpose of `np.diff` along an axis."""
    edges = [(1, 1) if i == axis else (0, 0) for i in range(differences.ndim)]
    return np.asarray(-np.diff(np.pad(differences, edges), axis=axis))


def _diagonal(shape: tuple[int, ...], springs: Sequence[Floats]) -> Floats:
    total = np.zeros(shape)
    for axis, spring in enumerate(springs):
        along = np.moveaxis(total, axis, -1)
        along[..., 1:] += spring
        along[..., :-1] += spring
    return total.ravel()


def _conjugate(product: Callable[[Floats], Floats], right: Floats, inverse: Floats) -> Floats:
    x = np.zeros_like(right)
    rest = right.copy()
    scaled = inverse * rest
    way = scaled.copy()
    now = first = float(rest @ scaled)
    for _ in range(2000):
        turned = product(way)
        length = now / float(way @ turned)
        x += length * way
        rest -= length * turned
        scaled = inverse * rest
        before, now = now, float(rest @ scaled)
        if now <= 1e-12 * first:
            break
        way = scaled + now / before * way
    return x


_SWEEPS = 300


def _monotone(table: Floats, rising: Sequence[bool]) -> Floats:
    """A rising surface near the table: neighbours that fall are set to their mean, in many sweeps
    over all axes.

    What is left of falls then goes half way between the least rising surface above and the greatest
    below (each of which rises, hence their mean), which alone would let one outlier lift or lower
    all that follows it.
    """
    axes = [axis for axis, rises in enumerate(rising) if rises]
    level = table.copy()
    for _ in range(_SWEEPS):
        for axis in axes:
            along = np.moveaxis(level, axis, 0)
            for first in (0, 1):
                low, high = along[first:-1:2], along[first + 1 :: 2]
                fall = np.maximum(low - high, 0.0) / 2
                low -= fall
                high += fall
    above, below = level, level
    for axis in axes:
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis=axis), axis=axis), axis=axis)
    return (above + below) / 2
