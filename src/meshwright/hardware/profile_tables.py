"""Grids for lookups from the samples of a profile."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.hardware.profile import Profile, Series
from meshwright.hardware.tables._grid import Floats, Grid
from meshwright.hardware.tables._store import ChipTables

__all__ = ["grid_of_series", "profile_tables"]

LEAST_SHARE = 0.5
"""Of a grid's points that must have a time; the rest are filled from their neighbours. A series cut off earlier is left out."""
_GROWTH: dict[str, tuple[float, ...]] = {"attention": (1.0, 0.0, 1.0, 2.0), "collective": (0.0, 1.0)}
"""Power of time in each argument beyond the grid, where it is not 1: the sequence of attention counts twice, its group of heads
and the ranks of a collective not at all."""


def profile_tables(profile: Profile) -> ChipTables:
    """Return a profile as the tables that lookups read: those of the same names (`gemm/bf16`, ...) and the profile's own.

    Formula:  time at the grid's points as measured; exact shapes of a model become points of the axes, and what was not measured
              there is interpolated; points without a time grow from the nearest that has one
    Units:    log seconds.
    Source:   the profile.
    Valid:    series of which half the grid was measured.
    Checked:  tests/hardware/test_profile.py
    """
    grids = {}
    for series in profile.series:
        grid = grid_of_series(series)
        if grid is not None:
            grids[series.name] = grid
    return ChipTables(grids=grids, meta=_facts(profile, grids))


def grid_of_series(series: Series) -> Grid | None:
    """Return the grid of one series; None where too few of its points have a time."""
    growth = _growth(series)
    axes = tuple(np.log(np.asarray(axis)) for axis in series.axes)
    points, times = _logs(series)
    places = [np.searchsorted(axis, column - _SAME) for axis, column in zip(axes, points.T, strict=True)]
    on_grid = np.ones(len(times), dtype=np.bool_)
    for axis, column, place in zip(axes, points.T, places, strict=True):
        on_grid &= np.abs(axis[np.minimum(place, axis.size - 1)] - column) < _SAME
    if on_grid.sum() < LEAST_SHARE * np.prod([axis.size for axis in axes]):
        return None
    table = np.full([axis.size for axis in axes], np.nan)
    table[tuple(place[on_grid] for place in places)] = times[on_grid]
    grid = Grid(log_axes=axes, log_seconds=_filled(table, axes, growth), growth=growth)
    return grid if on_grid.all() else _refined(grid, points[~on_grid], times[~on_grid])


_SAME = 1e-9
"""Difference of logarithms below which two arguments are one."""


def _growth(series: Series) -> tuple[float, ...]:
    family = series.name.partition("/")[0].partition("_")[0]
    return _GROWTH.get(family, (1.0,) * len(series.dims))


def _logs(series: Series) -> tuple[Floats, Floats]:
    """Points and times in logarithms, (N, dims) and (N,)."""
    known = series.measured
    points = np.log(np.asarray([sample.point for sample in known], dtype=np.float64).reshape(-1, len(series.dims)))
    return points, np.log(np.asarray([sample.seconds for sample in known], dtype=np.float64))


def _filled(table: Floats, axes: tuple[Floats, ...], growth: tuple[float, ...]) -> Floats:
    """The table without holes: each takes the nearest known point's time, grown by the distance."""
    places = np.stack([place.ravel() for place in np.meshgrid(*axes, indexing="ij")], axis=1)
    flat = table.ravel().copy()
    known = ~np.isnan(flat)
    for hole in np.flatnonzero(~known):
        step = places[hole] - places[known]
        nearest = int(np.argmin(np.abs(step).sum(axis=1)))
        flat[hole] = flat[known][nearest] + float(step[nearest] @ np.asarray(growth))
    return flat.reshape(table.shape)


def _refined(grid: Grid, points: Floats, times: Floats) -> Grid:
    """The grid with further points on its axes, which keeps every measured time."""
    axes = tuple(_merged(axis, points[:, place]) for place, axis in enumerate(grid.log_axes))
    inside = [np.exp(place) for place in np.meshgrid(*axes, indexing="ij")]
    table = np.log(grid.lookup(*inside).seconds)
    index = tuple(np.searchsorted(axis, points[:, place] - _SAME) for place, axis in enumerate(axes))
    table[index] = times
    return Grid(log_axes=axes, log_seconds=table, growth=grid.growth)


def _merged(axis: Floats, further: Floats) -> Floats:
    every = np.sort(np.concatenate([axis, further]))
    return np.asarray(every[np.concatenate([[True], np.diff(every) > _SAME])])


def _facts(profile: Profile, grids: dict[str, Grid]) -> dict[str, Any]:
    machine = profile.machine
    return {
        "source": f"measured by meshwright profile on {machine.device_name}, {machine.date}, torch {machine.torch_version}",
        "same": _same(grids),
        "full_share": _full_share(profile, grids),
        "kv_s_per_byte": 0.0,  # the measured kernel includes its reads
        "complete": profile.complete,
    }


def _same(grids: dict[str, Grid]) -> dict[str, str]:
    """Names that read another's grid: fp16 runs at bf16's speed, tf32 is not fp32's."""
    return {f"{family}/fp16": f"{family}/bf16" for family in ("gemm", "attention", "experts") if f"{family}/fp16" not in grids}


def _full_share(profile: Profile, grids: dict[str, Grid]) -> float:
    """Time of full attention over that of causal attention on sqrt(2) times the sequence, the median over what was measured."""
    ratios: list[float] = []
    for series in profile.series:
        family, _, precision = series.name.partition("/")
        causal = grids.get(f"attention/{precision}")
        if family == "attention_full" and causal is not None:
            for sample in series.measured:
                dim, group, heads, sequence = sample.point
                ratios.append((sample.seconds or 0.0) / float(causal.lookup(dim, group, heads, sequence * np.sqrt(2)).seconds))
    return float(np.median(ratios)) if ratios else 1.0
