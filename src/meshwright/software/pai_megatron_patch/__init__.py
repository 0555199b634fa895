"""Pai-Megatron-Patch: command lines of Megatron-LM with the patch's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.software.folders import Software

if TYPE_CHECKING:
    from meshwright.software.contract import ExportTarget

__all__ = [
    "SOFTWARE",
]


def _targets() -> tuple[ExportTarget, ...]:
    from meshwright.software.pai_megatron_patch.export import PAI

    return (PAI,)


SOFTWARE = Software(
    name="pai-megatron-patch",
    title="Pai-Megatron-Patch",
    order=90,
    targets=_targets,
)
