"""Whose tables a chip reads: its own, or those of its nearest kin, scaled by the ratio of their
peaks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import log
from typing import Literal

from meshwright.hardware.catalogue import find_chip
from meshwright.hardware.chip import Chip
from meshwright.workload import Precision

__all__ = ["TABLE_CHIPS", "Kin", "kin"]

TABLE_CHIPS: tuple[str, ...] = (
    "a100-80",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "h100",
    "h200",
    "l40s",
    "rtx-pro-6000",
)
"""Chips with tables of their own, by their names in the catalogue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kin:
    """Whose tables to read for a chip, and how to scale them."""

    chip: Chip
    table: Chip
    relation: Literal["itself", "generation", "vendor", "stranger"]
    """itself: measured. generation: the same kernels on another size of chip. vendor: the same
    libraries, another architecture. stranger: only the shape of the surface is borrowed."""

    @property
    def confidence(self) -> Literal["high", "medium", "low"]:
        """How much an estimate that rests on it may claim."""
        if self.relation == "itself":
            return "high"
        return "medium" if self.relation == "generation" else "low"

    @property
    def note(self) -> str:
        """One line for people; empty where the chip has its own tables."""
        if self.relation == "itself":
            return ""
        borrowed = (
            f"the efficiencies of {self.table.name} at {self.chip.name}'s peaks ({self.relation})"
        )
        return f"{self.chip.name} has no measured operators: {borrowed}"

    def compute_scale(self, precision: Precision) -> float:
        """Factor on times that arithmetic bounds: the kin's peak over what this chip makes of its
        own; ConfigError without such a unit."""
        if self.table is self.chip:
            return 1.0
        return self.table.peak_flops_per_s(precision) / (
            self.chip.peak_flops_per_s(precision) * self.chip.kin_speed
        )

    @property
    def memory_scale(self) -> float:
        """Factor on times that memory bounds: the kin's bandwidth over this chip's."""
        return self.table.memory_bytes_per_s / self.chip.memory_bytes_per_s


@cache
def kin(chip: Chip) -> Kin:
    """Return whose tables to read for this chip: its own, else the nearest by generation, then
    vendor, then peaks."""
    if chip.tables is not None:
        return Kin(chip=chip, table=chip, relation="itself")
    if chip.name in TABLE_CHIPS:
        return Kin(chip=chip, table=find_chip(chip.name), relation="itself")
    candidates = [find_chip(name) for name in TABLE_CHIPS]
    family = [
        other for other in candidates if chip.generation and other.generation == chip.generation
    ]
    if family:
        return Kin(chip=chip, table=_nearest(chip, family), relation="generation")
    maker = [other for other in candidates if other.vendor == chip.vendor]
    if maker:
        return Kin(chip=chip, table=_nearest(chip, maker), relation="vendor")
    return Kin(chip=chip, table=_nearest(chip, candidates), relation="stranger")


def _nearest(chip: Chip, others: Iterable[Chip]) -> Chip:
    """The least distance in log arithmetic peak and log bandwidth; the first of equals."""
    return min(
        others,
        key=lambda other: (
            abs(log(_peak(other) / _peak(chip)))
            + abs(log(other.memory_bytes_per_s / chip.memory_bytes_per_s))
        ),
    )


def _peak(chip: Chip) -> float:
    return (
        chip.bf16_flops_per_s
        or chip.fp16_flops_per_s
        or chip.tf32_flops_per_s
        or chip.fp32_flops_per_s
        or 1.0
    )
