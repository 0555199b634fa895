"""Memory that communicators take outside the framework's allocator."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from meshwright.cost.shapes import Floats
from meshwright.hardware.chip import Chip
from meshwright.hardware.cluster import Pool
from meshwright.layout import Layouts
from meshwright.stack import Stack
from meshwright.units import MIB

__all__ = ["communicator_bytes"]

_SWITCH_BOARD = 8
"""Chips of the smallest domain with a switch that reduces; smaller ones are wired to each other.
Members beyond it are not counted: no published log shows larger domains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Buffers:
    """What one communicator takes on each of its members."""

    pair_bytes: float
    """With two members."""
    group_bytes: float
    """With more."""
    switch_generations: frozenset[str]
    """Generations of chips whose switches reduce."""
    switch_member_bytes: float
    """There, beyond that, for each member in the domain."""


def communicator_bytes(layouts: Layouts, *, pool: Pool, stack: Stack) -> Floats:
    """Buffers of a rank's communicators, (N, 1).

    Formula:  sum over tp, cp, ep, dp * cp and pp, those above 1, and all ranks where Megatron's
              groups or two axes stand beside them: a pair's or a group's buffers; a pair's of pp,
              since neighbours alone exchange, and all ranks of a pipeline are many, so that a stage
              holds as much whatever its number of stages; for those that reduce (tp, dp * cp, all)
              where a switch does, and more than two members share it, a share for each of them
    Units:    bytes.
    Source:   presets/communicators.csv.
    Valid:    a communicator an axis, each with its own buffers, none registered by the user; 0
              where the stack counts no context.
    Checked:  tests/cost/test_communicators.py
    """
    chip = pool.node.chip
    none = np.zeros((len(layouts), 1))
    if chip.is_processor or not stack.context_bytes:
        return none
    buffers = _buffers_of(chip)
    tp, cp, ep, pp = (
        np.asarray(axis, dtype=np.float64)
        for axis in (layouts.tp, layouts.cp, layouts.ep, layouts.pp)
    )
    replicas = np.asarray(layouts.dp * layouts.cp, dtype=np.float64)
    reducing: list[tuple[Floats, Floats | float]] = [(tp, 1.0), (replicas, tp)]
    used = np.sum([size > 1 for size in (tp, replicas, cp, ep, pp)], axis=0)
    world = np.where(pp > 1, np.maximum(_SWITCH_BOARD, tp * replicas), tp * replicas)
    reducing.append((world * ((used > 1) | (stack.family == "megatron")), 1.0))
    sizes = [*(size for size, _ in reducing), cp, ep, np.minimum(pp, 2.0)]
    total: Floats = np.sum(
        [
            np.where(size > 2, buffers.group_bytes, buffers.pair_bytes) * (size > 1)
            for size in sizes
        ],
        axis=0,
    )
    if (
        stack.in_switch_reductions
        and chip.generation in buffers.switch_generations
        and pool.node.domain_size >= _SWITCH_BOARD
    ):
        members = [
            np.clip(
                np.floor(pool.node.domain_size / stride), 1.0, np.clip(size, 1.0, _SWITCH_BOARD)
            )
            for size, stride in reducing
        ]
        total = total + buffers.switch_member_bytes * np.sum(
            [inside * (inside > 2) for inside in members], axis=0
        )
    return np.asarray(total)[:, None]


def _buffers_of(chip: Chip) -> _Buffers:
    known = _vendors()
    return known.get(chip.vendor.lower(), known[""])


@cache
def _vendors() -> dict[str, _Buffers]:
    with (resources.files("meshwright") / "presets" / "communicators.csv").open(
        encoding="utf-8"
    ) as handle:
        return {
            row["vendor"]: _Buffers(
                pair_bytes=float(row["pair_mib"]) * MIB,
                group_bytes=float(row["group_mib"]) * MIB,
                switch_generations=frozenset(row["switch_generations"].split()),
                switch_member_bytes=float(row["switch_member_mib"]) * MIB,
            )
            for row in csv.DictReader(handle)
        }
