"""The best way to run a stage of so many layers: times under the recomputation that costs least and
fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.shapes import Floats
from meshwright.search.mixed.curves import ROLES, Curve

__all__ = ["OneWay", "StageTable", "role_of", "stage_table"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTable:
    """Stages of one place in the pipeline, one entry per count of layers; seconds are infinite
    where none of them fits."""

    forward_s: Floats
    backward_s: Floats
    way: Ints
    """Index into the curve's ways."""
    redone: Ints
    """With block recompute: layers per chunk that run again."""


def role_of(*, is_first: bool, is_last: bool) -> int:
    """Return the index of a place into ROLES."""
    return ROLES.index((is_first, is_last))


@dataclass(frozen=True, kw_only=True, slots=True)
class OneWay:
    """A way to recompute that all stages of a block share."""

    way: int
    """Index into the curve's ways."""
    redone: int = 0
    """With block recompute: layers per chunk that run again, all where a chunk has fewer."""


def stage_table(
    curve: Curve,
    *,
    layers: Ints,
    prefix: Ints,
    role: int,
    in_flight: float,
    vpp: int,
    limit_bytes: float,
    only: OneWay | None = None,
) -> StageTable:
    """Choose for each count of layers, (n,), of which `prefix` are of the model's first segment,
    the recomputation that costs least.

    Formula:  all ways are priced, or `only` one; block recompute runs again the fewest layers per
              chunk that bring the stage under the limit
    """
    main = layers - prefix
    counts = np.stack([main, prefix]).astype(np.float64)
    make = np.where(prefix == 0, 0, np.where(main == 0, 1, 2))
    forward = curve.forward_base_s[role] + curve.forward_layer_s @ counts
    backward = curve.backward_base_s[:, role, None] + curve.backward_layer_s @ counts
    held = _held_bytes(curve, counts, make, role, in_flight) + (vpp - 1) * curve.chunk_bytes
    fits = held <= limit_bytes
    redone = np.zeros(len(layers), dtype=np.int64)
    if curve.by_block:
        freed = _freed_bytes(curve, counts, in_flight)
        if only is None:
            redone, fits[-1] = _block(held[-1] - limit_bytes, freed, layers / vpp)
        else:
            redone = np.minimum(only.redone, -(-layers // vpp))
            fits[-1] = held[-1] - freed * np.minimum(1.0, redone * vpp / layers) <= limit_bytes
        backward[-1] += np.minimum(1.0, redone * vpp / layers) * (curve.redo_layer_s @ counts)
    if only is not None:
        fits &= np.arange(len(fits))[:, None] == only.way
    backward = np.where(fits, backward, np.inf)
    way = backward.argmin(axis=0)
    least = np.take_along_axis(backward, way[None], axis=0)[0]
    return StageTable(
        forward_s=np.where(np.isinf(least), np.inf, forward),
        backward_s=least,
        way=way,
        redone=np.where(way == len(curve.ways) - 1, redone, 0),
    )


def _held_bytes(curve: Curve, counts: Floats, make: Ints, role: int, in_flight: float) -> Floats:
    base = curve.base_bytes[:, :, role] + in_flight * curve.base_flight_bytes[:, :, role]
    return np.asarray(
        base[:, make] + (curve.layer_bytes + in_flight * curve.layer_flight_bytes) @ counts
    )


def _freed_bytes(curve: Curve, counts: Floats, in_flight: float) -> Floats:
    """What full recompute of all layers keeps less of than block recompute of none."""
    return np.asarray(
        in_flight
        * (curve.layer_flight_bytes[-1] - curve.layer_flight_bytes[curve.full_way])
        @ counts
    )


def _block(over: Floats, freed: Floats, per_chunk: Floats) -> tuple[Ints, NDArray[Any]]:
    """Layers per chunk that block recompute runs again at least, and whether they do: fewer than
    all, which is full recompute."""
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = np.ceil(np.maximum(over, 0.0) / freed * per_chunk - 1e-9)
    good = np.isfinite(wanted) & (wanted >= 1) & (wanted < per_chunk)
    return np.where(good, wanted, 0).astype(np.int64), good
