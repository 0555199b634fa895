"""What several targets work out from a layout: layers of each chunk, tensor parallelism of experts."""

from __future__ import annotations

from meshwright.layout import Layout

__all__ = ["chunk_layers", "expert_tp"]


def chunk_layers(layout: Layout, total_layers: int) -> tuple[int, ...]:
    """Return the layers of each of the pp * vpp chunks; chunk v of stage s is entry v * pp + s."""
    given, chunks = layout.layers_per_stage, layout.pp * layout.vpp
    if given is None:
        return (total_layers // chunks,) * chunks
    return given if len(given) == chunks else tuple(size // layout.vpp for size in given) * layout.vpp


def expert_tp(layout: Layout) -> int:
    """Return the tensor parallelism of experts with the default filled in; unlike the layout's property it reads the field."""
    return layout.tp if layout.etp is None else layout.etp
