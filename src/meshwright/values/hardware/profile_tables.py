"""Grids for lookups from the samples of a profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.grid import Floats, Grid
from meshwright.values.hardware.profile import Profile, Series
from meshwright.values.hardware.profile_chip import profile_words
from meshwright.values.hardware.tables import ChipTables, Kin, Origin, kin, tables_of
from meshwright.values.workload import Precision

__all__ = ["grid_of_series", "merged_tables", "profile_tables", "shipped_tables", "times_of_origin"]

LEAST_SHARE = 0.5
"""Of a grid's points that must have a time; the rest are filled. A series cut off earlier is left
out."""
_GROWTH: dict[str, tuple[float, ...]] = {
    "attention": (1.0, 0.0, 1.0, 2.0),
    "collective": (0.0, 1.0),
}
"""Power of time in each argument beyond the grid, where it is not 1: the sequence of attention
counts twice, its group of heads and the ranks of a collective not at all."""


def profile_tables(profile: Profile) -> ChipTables:
    """Return a profile as the tables that lookups read: those of the same names (`gemm/bf16`, ...)
    and the profile's own.

    Formula:  time at the grid's points as measured; exact shapes of a model become points of the
              axes, and what was not measured there is interpolated; points without a time grow from
              the nearest that has one
    Units:    log seconds.
    Source:   the profile.
    Valid:    series of which half the grid was measured.
    Checked:  tests/values/hardware/test_profile.py
    """
    found = {series.name: grid_of_series(series) for series in profile.series}
    grids = {name: grid for name, grid in found.items() if grid is not None}
    return ChipTables(grids=grids, meta=_facts(profile, grids))


def merged_tables(own: ChipTables, chip: Chip, *, measured: frozenset[str]) -> ChipTables:
    """Return a profile's tables, and behind them what is shipped for the chip or scaled from its
    kin, for what the profile lacks.

    Formula:  a kin's times * its peak / the chip's peak
    Units:    log seconds.
    Source:   the profile; `meshwright.values.hardware.tables`.
    Valid:    `measured` names the fields of the chip and the links that the profile gave.
    Checked:  tests/values/hardware/test_profiled.py
    """
    other = shipped_tables(chip)
    if other is None:
        return replace(own, origins=dict.fromkeys(own.grids, _OWN), measured=measured)
    names = {**other.meta["same"], **own.meta["same"]}
    meta = dict(own.meta)
    if not any(name.startswith("attention/") for name in own.grids):
        meta |= {key: other.meta[key] for key in _ATTENTION_FACTS}
    meta["same"] = {name: target for name, target in names.items() if name not in own.grids}
    origins: dict[str, Origin] = {**other.origins, **dict.fromkeys(own.grids, _OWN)}
    return ChipTables(
        grids={**other.grids, **own.grids}, meta=meta, origins=origins, measured=measured
    )


def shipped_tables(chip: Chip) -> ChipTables | None:
    """Return the tables that are shipped for a chip, or those of its generation's nearest chip at
    its own peaks; None without either."""
    nearest = kin(replace(chip, tables=None))
    found = tables_of(nearest.table.name)
    if found is None or nearest.relation not in ("itself", "generation"):
        return None
    if nearest.relation == "itself":
        return replace(found, origins=dict.fromkeys(found.grids, _SHIPPED))
    every = {name: _kin_scale(nearest, name) for name in found.grids}
    scales = {name: scale for name, scale in every.items() if scale is not None}
    grids = {name: found.grids[name].times(scale) for name, scale in scales.items()}
    meta = {**found.meta, _KV_READ: found.meta[_KV_READ] * (scales.get("attention/bf16") or 1.0)}
    return ChipTables(grids=grids, meta=meta, origins=dict.fromkeys(grids, _KIN))


def times_of_origin(
    tables: ChipTables, origin: Origin, factor: float, *, beyond: float = 1.0
) -> ChipTables:
    """Return the tables with every time of one origin multiplied, outside the shapes by `beyond`
    too."""
    grids = {
        name: grid.times(factor, beyond=beyond) if tables.origins[name] == origin else grid
        for name, grid in tables.grids.items()
    }
    meta = dict(tables.meta)
    if tables.origins.get("attention/bf16") == origin:
        meta[_KV_READ] *= factor
    return replace(tables, grids=grids, meta=meta)


_OWN: Origin = "profile"
_SHIPPED: Origin = "tables"
_KIN: Origin = "kin"
_OF_HALVES = (
    "gemm gemm_dgrad gemm_wgrad gemm_main_grad gemm_main_grad_fused attention attention_backward"
    " experts"
)
"""Families in which fp16 and bf16 run alike."""
_KV_READ = "kv_s_per_byte"
_ATTENTION_FACTS = ("full_share", _KV_READ)
"""What belongs to the chip's attention tables beside the grids."""


def _kin_scale(nearest: Kin, name: str) -> float | None:
    """Factor on a kin's times; None for links, and for precisions that the chip lacks."""
    family, _, kind = name.partition("/")
    if family in ("gemm", "experts"):
        try:
            return nearest.compute_scale(cast("Precision", kind))
        except ConfigError:
            return None
    if family in ("attention", "mla"):
        return nearest.compute_scale("fp16" if nearest.chip.bf16_flops_per_s is None else "bf16")
    return nearest.memory_scale if family == "quantise" else None


def grid_of_series(series: Series) -> Grid | None:
    """Return the grid of one series; None where too few of its points have a time."""
    family = series.name.partition("/")[0].partition("_")[0]
    growth = _GROWTH.get(family, (1.0,) * len(series.dims))
    axes = tuple(np.log(np.asarray(axis)) for axis in series.axes)
    points, times = _logs(series)
    places = [
        np.searchsorted(axis, column - _SAME) for axis, column in zip(axes, points.T, strict=True)
    ]
    on_grid = np.ones(len(times), dtype=np.bool_)
    for axis, column, place in zip(axes, points.T, places, strict=True):
        on_grid &= np.abs(axis[np.minimum(place, axis.size - 1)] - column) < _SAME
    if on_grid.sum() < LEAST_SHARE * np.prod([axis.size for axis in axes]):
        return None
    table = np.full([axis.size for axis in axes], np.nan)
    table[tuple(place[on_grid] for place in places)] = times[on_grid]
    grid = Grid(
        log_axes=axes, log_seconds=_filled(table, axes, growth), growth=growth, floor_s=FLOOR_S
    )
    return grid if on_grid.all() else _refined(grid, points[~on_grid], times[~on_grid])


FLOOR_S = 1e-5
"""No smaller shape is priced below this, or below its nearest measured time where that is shorter:
twice the launch of a kernel. A small grid starts at shapes whose time is work, so smaller ones take
less; the shipped tables start where it is launch."""
_SAME = 1e-9
"""Difference of logarithms below which two arguments are one."""


def _logs(series: Series) -> tuple[Floats, Floats]:
    """Points and times in logarithms, (N, dims) and (N,)."""
    known = series.measured
    points = np.asarray([sample.point for sample in known], dtype=np.float64)
    points = np.log(points.reshape(-1, len(series.dims)))
    return points, np.log(np.asarray([sample.seconds for sample in known], dtype=np.float64))


def _filled(table: Floats, axes: tuple[Floats, ...], growth: tuple[float, ...]) -> Floats:
    """The table without holes: each takes the nearest known point's time, grown by the distance."""
    places = np.stack([place.ravel() for place in np.meshgrid(*axes, indexing="ij")], axis=1)
    flat = table.ravel().copy()
    known = ~np.isnan(flat)
    steps = places[~known][:, None, :] - places[known][None, :, :]  # (holes, known, dims)
    nearest = np.abs(steps).sum(axis=2).argmin(axis=1)
    flat[~known] = flat[known][nearest] + steps[np.arange(len(nearest)), nearest] @ np.asarray(
        growth
    )
    return flat.reshape(table.shape)


def _refined(grid: Grid, points: Floats, times: Floats) -> Grid:
    """The grid with further points on its axes, which keeps every measured time."""
    axes = tuple(_merged(axis, points[:, place]) for place, axis in enumerate(grid.log_axes))
    inside = [np.exp(place) for place in np.meshgrid(*axes, indexing="ij")]
    table = np.log(grid.lookup(*inside).seconds)
    index = tuple(
        np.searchsorted(axis, points[:, place] - _SAME) for place, axis in enumerate(axes)
    )
    table[index] = times
    return replace(grid, log_axes=axes, log_seconds=table)


def _merged(axis: Floats, further: Floats) -> Floats:
    every = np.sort(np.concatenate([axis, further]))
    return np.asarray(every[np.concatenate([[True], np.diff(every) > _SAME])])


def _facts(profile: Profile, grids: dict[str, Grid]) -> dict[str, Any]:
    machine = profile.machine
    return {
        "source": profile_words(machine),
        "same": _same(grids),
        "full_share": _full_share(profile, grids),
        "kv_s_per_byte": 0.0,  # the measured kernel includes its reads
        "complete": profile.complete,
        "unsteady_frac": profile.num_unsteady / max(1, profile.num_measured),
    }


def _same(grids: dict[str, Grid]) -> dict[str, str]:
    """Names that read another's grid: fp16 and bf16 run alike, tf32 and fp32 do not."""
    pairs = [
        (f"{family}/{one}", f"{family}/{other}")
        for family in _OF_HALVES.split()
        for one, other in (("fp16", "bf16"), ("bf16", "fp16"))
    ]
    return {name: other for name, other in pairs if name not in grids and other in grids}


def _full_share(profile: Profile, grids: dict[str, Grid]) -> float:
    """Time of full attention over that of causal attention on sqrt(2) times the sequence, the
    median over what was measured."""
    ratios: list[float] = []
    for series in profile.series:
        family, _, precision = series.name.partition("/")
        causal = grids.get(f"attention/{precision}")
        if family == "attention_full" and causal is not None:
            points, times = _logs(series)
            dim, group, heads, sequence = np.exp(points.T)
            like = causal.lookup(dim, group, heads, sequence * np.sqrt(2)).seconds
            ratios += (np.exp(times) / like).tolist()
    return float(np.median(ratios)) if ratios else 1.0
