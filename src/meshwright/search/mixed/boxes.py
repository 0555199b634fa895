"""Boxes of plans in columns: intervals of stages and layers per block, and what the ways to cut a
stage take; boxes narrowed, and plans of them that may be good.

A row is a way to cut each pool's stages, an order of the pools, and for each block an interval of
its stages and of its layers. Pools that take no part are absent, at the end of the row, with id -1.
Arrays are (R,) per row and (R, K) per block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Floats
from meshwright.search.mixed.curves import Rows
from meshwright.search.mixed.forced import Room
from meshwright.search.mixed.together import deepest, hold_all_layers, slowest_stage_s

__all__ = ["Boxes", "Cuts", "Limits", "likely_plans", "tightened"]

Ints = NDArray[np.int64]
_EPS = 1e-9


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


def _others(array: Any) -> Any:
    return array.sum(axis=1, keepdims=True) - array


def tightened(
    boxes: Boxes, cuts: Cuts, limits: Limits, ceiling_s: Floats, *, margin: float = 1.0
) -> Boxes:
    """Narrow the intervals by each other, and by what a plan below the ceiling (R,) can be; rows
    where nothing is left are dropped. Plans so many times as slow as the ceiling are kept too where
    it is their whole step that is too slow."""
    chips, layer_s = cuts.chips[boxes.ids], cuts.layer_s[boxes.ids]
    present, micro = boxes.ids >= 0, boxes.num_microbatches[:, None]
    least = np.where(present, boxes.vpp[:, None], 0)
    s0, s1, n0, n1 = boxes.stages_from, boxes.stages_to, boxes.layers_from, boxes.layers_to
    # A step takes at least M times any stage, so that a stage with more layers than the ceiling has
    # room for over M is of no use.
    with np.errstate(divide="ignore", invalid="ignore"):
        upto = ceiling_s[:, None] / (micro * layer_s) + _EPS
    useful = slowest_stage_s(boxes, cuts, limits, margin * ceiling_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        upto = np.minimum(upto, np.maximum(0.0, useful[:, None] / layer_s) + _EPS)
    most = np.where(present, np.minimum(upto, limits.layers), 0).astype(np.int64)
    # Each interval narrows the others, so twice; what boxes still have too much of goes when their
    # halves are narrowed.
    for _ in range(2):
        # Layers: what the other blocks leave, and what the stages' time and memory have room for.
        room = np.minimum(s1 * most, _fitting(boxes, cuts, s0, s1))
        n1 = np.minimum(n1, np.minimum(limits.layers - _others(n0), room))
        n0 = np.maximum(n0, np.maximum(limits.layers - _others(n1), s0 * least))
        # Stages: what the other blocks leave of the chips, each with a layer a chunk, none with
        # more layers than are of use.
        free = (limits.num_gpus - _others(s0 * chips)) // np.maximum(chips, 1)
        s1 = np.minimum(s1, np.minimum(n1 // np.maximum(least, 1), np.where(present, free, 0)))
        s0 = np.maximum(s0, -(-n0 // np.maximum(most, 1)))
        if limits.filled:
            s1 = np.where(present, np.minimum(s1, micro - _others(s0)), s1)
        if limits.pp is not None:
            s1 = np.minimum(s1, max(limits.pp) - _others(s0))
            s0 = np.maximum(s0, np.where(present, min(limits.pp) - _others(s1), 0))
    good = (
        ((s0 <= s1) & (n0 <= n1) & (most >= least)).all(axis=1)
        & (n1.sum(axis=1) >= limits.layers)
        & (n0.sum(axis=1) <= limits.layers)
    )
    narrowed = replace(boxes, stages_from=s0, stages_to=s1, layers_from=n0, layers_to=n1)
    good &= hold_all_layers(s0, s1, most, depth=deepest(narrowed, limits), layers=limits.layers)
    return narrowed.take(good & _keeps_depth(narrowed, limits))


def _keeps_depth(boxes: Boxes, limits: Limits) -> NDArray[np.bool_]:
    """Whether the depth of a pipeline keeps the rules, (R,), where it is known already."""
    fixed = (boxes.stages_from == boxes.stages_to).all(axis=1)
    deep, pp = boxes.vpp > 1, boxes.stages_from.sum(axis=1)
    good = ~deep | (boxes.stages_to.sum(axis=1) > 1)
    if limits.pp is not None:
        good &= ~fixed | np.isin(pp, limits.pp)
    # Interleaving takes micro batches in whole rounds: of pp in Megatron, in PyTorch of the same
    # size.
    pp, micro = np.maximum(pp, 1), boxes.num_microbatches
    rounds = micro % (pp if limits.whole_rounds else np.maximum(1, micro // pp))
    return np.asarray(good & (~(fixed & deep) | ((pp > 1) & (rounds == 0) & (micro >= pp))))


def _fitting(boxes: Boxes, cuts: Cuts, s0: Ints, s1: Ints) -> Ints:
    """Layers that a block's stages have memory for at most: a stage holds as many micro batches as
    there are stages from it on, (R, K)."""
    top = cuts.fitting.shape[1] - 1
    behind = s0[:, ::-1].cumsum(axis=1)[:, ::-1] - s0  # stages below the block, at least
    held = np.minimum(boxes.num_microbatches[:, None], top)
    # `fitting` sums the layers of the last stages of a pipeline: the block's are a difference of
    # two entries. Pinned depths leave some rows less than no stage.
    low, high = (np.clip(depth, 0, held) for depth in (behind, behind + s1))
    # Stages further up hold as many micro batches as there are, and no more.
    beyond = np.maximum(0, s1 - (high - low))
    table, rows = cuts.fitting, boxes.ids
    last = table[rows, held] - table[rows, np.maximum(held - 1, 0)]
    return np.asarray(table[rows, high] - table[rows, low] + beyond * last)


def likely_plans(boxes: Boxes, cuts: Cuts, limits: Limits, *, share: float) -> Boxes:
    """One plan of each row that may be good: chips that get most from their number first, layers by
    speed, no stage that helps nobody.

    `share` of the stages that there could be are made at most.
    """
    ids, present = boxes.ids, boxes.ids >= 0
    layer_s, chips = cuts.layer_s[ids], cuts.chips[ids]
    least = boxes.vpp[:, None] * present
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(present, 1.0 / (layer_s * chips), -1.0)
    order = np.argsort(-worth, axis=1, kind="stable")
    room = limits.num_gpus - (boxes.stages_from * chips).sum(axis=1)
    largest = np.ceil(share * boxes.stages_to).astype(np.int64)
    left = limits.layers // boxes.vpp - boxes.stages_from.sum(axis=1)
    stages = boxes.stages_from.copy()
    rows = np.arange(len(boxes))
    for rank in range(ids.shape[1]):
        at = order[:, rank]
        size = np.maximum(1, chips[rows, at])
        wanted = np.minimum(np.minimum(room // size, left), largest[rows, at] - stages[rows, at])
        more = np.clip(wanted, 0, None) * present[rows, at]
        stages[rows, at] += more
        room, left = room - more * chips[rows, at], left - more
    # Layers one at a time to the block that is quickest with one more.
    layers = stages * least
    for _ in range(limits.layers):
        short = layers.sum(axis=1) < limits.layers
        if not short.any():
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            next_s = np.where(present, (layers + 1) / stages * layer_s, np.inf)
        at = next_s.argmin(axis=1)
        layers[rows[short], at[short]] += 1
    # A stage without which the fullest stays as full helps nobody.
    even = -(-layers // np.maximum(stages, 1))
    stages = np.where(present, np.maximum(boxes.stages_from, -(-layers // np.maximum(even, 1))), 0)
    return replace(
        boxes, stages_from=stages, stages_to=stages, layers_from=layers, layers_to=layers
    )
