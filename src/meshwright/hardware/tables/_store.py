"""Reading and writing of the shipped tables: one .npz per chip."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.hardware.tables._grid import Floats, Grid

__all__ = ["LOG_STEP", "ChipTables", "Origin", "decode", "encode", "read_tables", "tables_of"]

Origin = Literal["profile", "tables", "kin"]
"""Measured by the user; shipped with the package for this chip; shipped for another chip of its
generation, and scaled."""

LOG_STEP = 0.0005
"""Steps of log seconds that are stored, so that rounding moves a time by 0.025 % at most."""
_LOG_FLOOR = -18.0
"""Log seconds of the stored zero: 15 ns, below every kernel."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChipTables:
    """All tables of one chip."""

    grids: Mapping[str, Grid]
    """By name: `gemm/bf16`, `attention/bf16`, `collective/all_gather`, ..."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Source, versions, counts of rows, constants beside the grids."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where each grid is from; a name that is not here is the chip's own shipped one."""
    measured: frozenset[str] = frozenset()
    """Fields of the chip, and links of its node, that the user measured with these tables."""


def encode(log_seconds: Floats) -> NDArray[np.int16]:
    """Return steps of log seconds, each as its difference from the one before on the first axis,
    which packs well."""
    steps = np.rint((log_seconds - _LOG_FLOOR) / LOG_STEP).astype(np.int64)
    packed = np.diff(steps, axis=0, prepend=0).astype(np.int64)
    packed[0] -= 32767
    assert packed.min() >= -32768, "below the stored range"
    assert packed.max() <= 32767, "above the stored range"
    return packed.astype(np.int16)


def decode(packed: NDArray[np.int16]) -> Floats:
    """Return log seconds of what `encode` made."""
    steps = packed.astype(np.int64)
    steps[0] += 32767
    return np.asarray(np.cumsum(steps, axis=0) * LOG_STEP + _LOG_FLOOR)


def read_tables(file: Traversable) -> ChipTables:
    """Read one .npz."""
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        meta = json.loads(arrays["meta"].tobytes())
        grids = {name: _grid(arrays[name], meta["grids"][name]) for name in meta["grids"]}
    return ChipTables(grids=MappingProxyType(grids), meta=MappingProxyType(meta))


def _grid(packed: NDArray[np.int16], facts: Mapping[str, Any]) -> Grid:
    axes = tuple(np.log(np.asarray(points, dtype=np.float64)) for points in facts["points"])
    return Grid(log_axes=axes, log_seconds=decode(packed), growth=tuple(facts["growth"]))


@cache
def tables_of(chip: str) -> ChipTables | None:
    """Return the tables of a chip of the catalogue, None where there are none."""
    file = files("meshwright") / "hardware" / "data" / f"{chip}.npz"
    return read_tables(file) if file.is_file() else None
