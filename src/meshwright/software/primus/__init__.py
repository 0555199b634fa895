"""AMD's Primus: its configurations for Megatron, written and read."""

from __future__ import annotations

from meshwright.software.folders import Software, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="primus",
    title="Primus",
    order=35,
    targets=parts(__name__, "export:PRIMUS"),
    sources=parts(__name__, "read:PRIMUS_SOURCE"),
)
