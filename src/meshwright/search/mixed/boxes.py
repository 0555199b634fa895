"""Boxes of plans in columns: intervals of stages and layers per block, and what the ways to cut a
stage take.

A row is a way to cut each pool's stages, an order of the pools, and for each block an interval of
its stages and of its layers. Pools that take no part are absent, at the end of the row, with id -1.
Arrays are (R,) per row and (R, K) per block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Floats
from meshwright.search.mixed.curves import Rows
from meshwright.search.mixed.forced import Room

__all__ = ["Boxes", "Cuts", "Limits"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Ways to cut a stage by id, (G + 1,); the last row stands for absent pools, all zeros."""

    chips: Ints
    forward_s: Floats
    """Of the quickest layer."""
    backward_s: Floats
    forward_share: Floats
    """Of a layer's time, at most; and of its backward, without recompute."""
    backward_share: Floats
    slow_share: Floats
    """Of a layer's time in its backward, everything recomputed."""
    slow_backward_s: Floats
    """Of the slowest layer, everything recomputed."""
    head_s: Floats
    """What the last stage takes beyond its layers, forward and backward."""
    first_s: Floats
    """What the first stage takes beyond its layers at least, forward and backward."""
    first_forward_s: Floats
    """What the first stage takes beyond its layers."""
    first_backward_s: Floats
    domain: Ints
    """Chips of a fast domain."""
    near_s: Floats
    """A message inside a domain, inside the pool, and to another pool."""
    inside_s: Floats
    across_s: Floats
    room: Room
    fitting: Ints
    """Layers that fit in the last 0 .. L stages of a pipeline together, (G + 1, L + 1)."""
    most_forward_s: Floats
    """Of the slowest layer, nothing recomputed."""
    most_backward_s: Floats
    reduce_s: Floats
    """By role and layers of the fullest stage, (G + 1, 4, L + 1)."""
    gather_s: Floats
    optimizer_s: Floats

    @property
    def layer_s(self) -> Floats:
        """The quickest layer, forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Boxes(Rows):
    """Rows of the search."""

    ids: Ints
    """Cut of each block in the order of the pipeline, (R, K)."""
    stages_from: Ints
    stages_to: Ints
    layers_from: Ints
    layers_to: Ints
    num_microbatches: Ints
    """(R,)."""
    vpp: Ints
    bound_s: Floats

    def __len__(self) -> int:
        return len(self.vpp)

    @property
    def width(self) -> Floats:
        """Of each interval against its end, (R, 2 K): stages, then layers."""
        stages = (self.stages_to - self.stages_from) / np.maximum(1, self.stages_to)
        layers = (self.layers_to - self.layers_from) / np.maximum(1, self.layers_to)
        return np.concatenate([stages, layers], axis=1)

    def halves(self) -> Boxes:
        """Cut each row in two at the middle of its widest interval."""
        rows, count = np.arange(len(self)), self.ids.shape[1]
        at = self.width.argmax(axis=1)
        is_stages, block = at < count, at % count
        low, high = (
            np.where(is_stages, s[rows, block], n[rows, block])
            for s, n in ((self.stages_from, self.layers_from), (self.stages_to, self.layers_to))
        )
        middle = (low + high) // 2

        def changed(array: Ints, chosen: NDArray[np.bool_], values: Ints) -> Ints:
            copy = array.copy()
            copy[rows[chosen], block[chosen]] = values[chosen]
            return copy

        lower = replace(
            self,
            stages_to=changed(self.stages_to, is_stages, middle),
            layers_to=changed(self.layers_to, ~is_stages, middle),
        )
        upper = replace(
            self,
            stages_from=changed(self.stages_from, is_stages, middle + 1),
            layers_from=changed(self.layers_from, ~is_stages, middle + 1),
        )
        return Boxes.concat([lower, upper])


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What holds for every row."""

    layers: int
    num_gpus: int
    blocking: bool
    whole_rounds: bool
    """Whether interleaving takes micro batches in whole rounds of the stages."""
    filled: bool
    """Whether there are as many micro batches as stages, at least."""
    dp_overlap: float
    overhead_s: float
    pp: tuple[int, ...] | None
    """Pinned numbers of stages."""
