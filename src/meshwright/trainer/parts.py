"""Which layers each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.search.rules.split import even_split
from meshwright.values.errors import LayoutError
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec

__all__ = ["Part", "is_v", "own_parts", "stage_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one pipeline chunk holds of the model."""

    layers: tuple[int, ...]
    """Indices in the whole model."""
    first: bool
    last: bool


def own_parts(model: ModelSpec, layout: Layout, stage: int) -> list[tuple[int, Part]]:
    """Return the chunks of one stage with their places in the model: chunk v of stage s is number v
    * pp + s, and in a V, which goes down the stages and up again, s and 2 * pp - 1 - s."""
    sizes = layout.layers_per_stage or even_split(model.num_layers, pp=layout.pp, vpp=layout.vpp)
    if len(sizes) == layout.pp and layout.vpp > 1:
        sizes = _chunks_of_stages(sizes, layout)
    if len(sizes) != layout.pp * layout.vpp or sum(sizes) != model.num_layers:
        raise LayoutError(
            f"layers_per_stage={'+'.join(map(str, sizes))}: expected {layout.pp * layout.vpp}"
            f" chunks that sum to {model.num_layers} layers"
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    last = len(sizes) - 1
    places = (stage, last - stage) if is_v(layout) else range(stage, len(sizes), layout.pp)
    return [
        (
            i,
            Part(
                layers=tuple(range(starts[i], starts[i] + sizes[i])), first=i == 0, last=i == last
            ),
        )
        for i in places
    ]


def stage_of(place: int, layout: Layout) -> int:
    """Return the stage that holds a chunk."""
    return min(place, 2 * layout.pp - 1 - place) if is_v(layout) else place % layout.pp


def is_v(layout: Layout) -> bool:
    """Whether the chunks of a pipeline go down the stages and up again, so that the first stage
    holds both ends of the model."""
    return layout.schedule == "zero-bubble" and layout.vpp == 2


def _chunks_of_stages(stages: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Split each stage's layers over its chunks, earlier chunks first."""
    parts = [
        [size // layout.vpp + (v < size % layout.vpp) for v in range(layout.vpp)] for size in stages
    ]
    rounds = [[part[v] for part in parts] for v in range(layout.vpp)]
    if is_v(layout):
        rounds[1].reverse()
    return tuple(size for sizes in rounds for size in sizes)
