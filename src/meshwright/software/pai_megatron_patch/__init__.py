"""Pai-Megatron-Patch: command lines of Megatron-LM with the patch's own words."""

from __future__ import annotations

from meshwright.software.folders import Software, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="pai-megatron-patch",
    title="Pai-Megatron-Patch",
    order=90,
    targets=parts(__name__, "export:PAI"),
)
