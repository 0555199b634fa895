"""Lower bounds of boxes of plans, in columns: intervals of stages and layers per block, priced at once.

A row is a way to cut each pool's stages, an order of the pools, and for each block an interval of its stages and of its layers. Pools that
take no part are absent, at the end of the row, with id -1. Arrays are (R,) per row and (R, K) per block.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.shapes import Floats
from meshwright.search.mixed.curves import FIRST, LAST, MIDDLE, WHOLE

__all__ = ["Boxes", "Cuts", "Limits", "bound_s", "likely_plans", "tightened"]

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
    slow_backward_s: Floats
    """Of the slowest layer, everything recomputed."""
    head_s: Floats
    """What the last stage takes beyond its layers, forward and backward."""
    first_forward_s: Floats
    """What the first stage takes beyond its layers."""
    first_backward_s: Floats
    near_s: Floats
    """Least time of a message, and most."""
    far_s: Floats
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
class Boxes:
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

    def take(self, index: Any) -> Boxes:
        """Return some rows."""
        return Boxes(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @staticmethod
    def concat(parts: list[Boxes]) -> Boxes:
        """Return the rows of several."""
        return Boxes(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Boxes)})

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

        lower = replace(self, stages_to=changed(self.stages_to, is_stages, middle), layers_to=changed(self.layers_to, ~is_stages, middle))
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
    dp_overlap: float
    overhead_s: float
    pp: tuple[int, ...] | None
    """Pinned numbers of stages."""


def _others(array: Any) -> Any:
    return array.sum(axis=1, keepdims=True) - array


def tightened(boxes: Boxes, cuts: Cuts, limits: Limits, ceiling_s: Floats) -> Boxes:
    """Narrow the intervals by each other, and by what a plan below the ceiling (R,) can be; rows where nothing is left are dropped."""
    chips, layer_s = cuts.chips[boxes.ids], cuts.layer_s[boxes.ids]
    present = boxes.ids >= 0
    least = np.where(present, boxes.vpp[:, None], 0)
    s0, s1, n0, n1 = boxes.stages_from, boxes.stages_to, boxes.layers_from, boxes.layers_to
    with np.errstate(divide="ignore", invalid="ignore"):
        most = ceiling_s[:, None] / (boxes.num_microbatches[:, None] * layer_s) + _EPS
    most = np.where(present, np.minimum(most, limits.layers), 0).astype(np.int64)
    for _ in range(2):
        n1 = np.minimum(n1, np.minimum(limits.layers - _others(n0), np.minimum(s1 * most, _fitting(boxes, cuts, s0, s1))))
        n0 = np.maximum(n0, np.maximum(limits.layers - _others(n1), s0 * least))
        room = limits.num_gpus - _others(s0 * chips)
        s1 = np.minimum(s1, np.minimum(n1 // np.maximum(least, 1), np.where(present, room // np.maximum(chips, 1), 0)))
        s0 = np.maximum(s0, -(-n0 // np.maximum(most, 1)))
        if limits.pp is not None:
            s1 = np.minimum(s1, max(limits.pp) - _others(s0))
            s0 = np.maximum(s0, np.where(present, min(limits.pp) - _others(s1), 0))
    good = ((s0 <= s1) & (n0 <= n1) & (most >= least)).all(axis=1) & (n1.sum(axis=1) >= limits.layers) & (n0.sum(axis=1) <= limits.layers)
    fixed = (s0 == s1).all(axis=1)
    pp = s0.sum(axis=1)
    if limits.pp is not None:
        good &= ~fixed | np.isin(pp, limits.pp)
    deep = boxes.vpp > 1
    good &= ~deep | (s1.sum(axis=1) > 1)
    pp = np.maximum(pp, 1)
    rounds = boxes.num_microbatches % pp if limits.whole_rounds else boxes.num_microbatches % np.maximum(1, boxes.num_microbatches // pp)
    good &= ~(fixed & deep) | ((pp > 1) & (rounds == 0) & (boxes.num_microbatches >= pp))
    return replace(boxes, stages_from=s0, stages_to=s1, layers_from=n0, layers_to=n1).take(good)


def _fitting(boxes: Boxes, cuts: Cuts, s0: Ints, s1: Ints) -> Ints:
    """Layers that a block's stages have memory for at most: a stage holds as many micro batches as there are stages from it on, (R, K)."""
    top = cuts.fitting.shape[1] - 1
    behind = s0[:, ::-1].cumsum(axis=1)[:, ::-1] - s0  # stages below the block, at least
    held = np.minimum(boxes.num_microbatches[:, None], top)
    low, high = np.minimum(behind, held), np.minimum(behind + s1, held)
    beyond = np.maximum(0, s1 - (high - low))
    table, rows = cuts.fitting, boxes.ids
    last = table[rows, held] - table[rows, np.maximum(held - 1, 0)]
    return np.asarray(table[rows, high] - table[rows, low] + beyond * last)


def bound_s(boxes: Boxes, cuts: Cuts, limits: Limits) -> Floats:
    """Seconds of a step that no plan of a row undercuts, (R,).

    Formula:  the closed form of 1f1b at the first stage of each block, which holds no less than the block's layers spread evenly, with no
              recompute, the least that can lie above and below, and the most stages; the largest over the blocks; and what is done once
    Units:    seconds.
    Source:   docs/heterogeneous.md, "Why the bound holds".
    Valid:    tightened boxes.
    Checked:  tests/search/test_mixed.py::test_search_finds_what_brute_force_finds
    """
    case = _Case(boxes, cuts, limits)
    chains = case.chains_s()
    return np.asarray(chains + case.once_s(chains) + limits.overhead_s)


class _Case:
    """Quantities of the rows that both forms need, (R, K)."""

    def __init__(self, boxes: Boxes, cuts: Cuts, limits: Limits) -> None:
        self.boxes, self.cuts, self.limits = boxes, cuts, limits
        ids = boxes.ids
        self.present = ids >= 0
        count = ids.shape[1]
        used = self.present.sum(axis=1)
        self.last = np.arange(count)[None] == used[:, None] - 1
        self.first = np.broadcast_to(np.arange(count)[None] == 0, ids.shape)
        self.s0, self.s1, self.n0, self.n1 = boxes.stages_from, boxes.stages_to, boxes.layers_from, boxes.layers_to
        self.micro = boxes.num_microbatches[:, None].astype(np.float64)
        self.forward, self.backward = cuts.forward_s[ids], cuts.backward_s[ids]
        layer = self.forward + self.backward
        head = np.where(self.last, cuts.head_s[ids], 0.0)
        self.even = -(-self.n0 // np.maximum(self.s1, 1))
        self.slowest = _slowest_s(self.n0, self.s1, self.even, layer, head)
        work = self.n0 * layer + head
        self.total = work.sum(axis=1, keepdims=True)
        self.above = work.cumsum(axis=1) - work
        stages0, stages1 = self.s0.cumsum(axis=1), self.s1.cumsum(axis=1)
        self.below0 = np.maximum(0, stages0[:, -1:] - stages0 + self.s0 - 1)  # stages below the first of a block, at least
        self.below1 = np.maximum(0, stages1[:, -1:] - stages1 + self.s1 - 1)
        self.above0 = stages0 - self.s0
        near = np.where(self.present, cuts.near_s[ids], np.inf).min(axis=1, keepdims=True)
        self.near, self.far = near, np.where(self.present, cuts.far_s[ids], 0.0).max(axis=1, keepdims=True)
        self.shares = (cuts.forward_share[ids], cuts.backward_share[ids])

    def chains_s(self) -> Floats:
        """The longest chain of any block at least, (R,).

        Its slowest stage is at least at the block's first place. If no stage has more layers than even ones, then of those that have as
        many the last lies behind the others; if one has, it has a layer more.
        """
        nowhere = np.zeros_like(self.slowest)
        layer = self.cuts.layer_s[self.boxes.ids]
        even = self.even * layer
        behind = np.maximum(0, self.n0 - self.s1 * (self.even - 1) - 1)
        first = self._chain(self.slowest, nowhere)
        later = np.minimum(self._chain(even, behind), self._chain(even + layer, nowhere))
        chains = np.where(self.present, np.maximum(first, later), 0.0)
        return np.asarray(chains.max(axis=1))

    def _chain(self, slowest: Floats, places: Any) -> Floats:
        """The chain of a stage that takes `slowest`, so many places behind its block's first, all in between being as slow, (R, K)."""
        above, stages = self.above + places * slowest, self.above0 + places
        below = np.maximum(0.0, self.total - above - slowest)
        counts = (np.maximum(0, self.below0 - places), np.maximum(0, self.below1 - places))
        plain = self._plain(slowest, above, stages, below, *counts)
        if not (self.boxes.vpp > 1).any():
            return plain
        return np.where(self.boxes.vpp[:, None] > 1, self._interleaved(slowest, above, stages, below, *counts), plain)

    def _plain(self, slowest: Floats, above: Floats, stages: Any, below: Floats, below0: Any, below1: Any) -> Floats:
        m, near, far = self.micro, self.near, self.far
        f, b = (share * slowest for share in self.shares)
        full = self.n0 - self.s1 * (self.even - 1)  # stages with at least the even count
        ends = self.first.astype(np.int64) + self.last
        lone = self.s0.sum(axis=1, keepdims=True) < 2
        blocks = float(self.limits.blocking)
        hold = blocks * np.where(lone, 0.0, near * np.where(full > ends, 2.0, 1.0))
        once = blocks * near * (below0 > 0)
        trip = below + 2 * below0 * near - below1 * (2 * far * blocks) - far * blocks
        waits = np.maximum(0.0, trip - below1 * f) + np.maximum(0.0, trip - below1 * b)
        steady = slowest * m + (m - 1 + below0) * hold + once + waits
        half = (1 - self.shares[0]) * slowest  # the longer of its passes, at least
        short = np.maximum(m * slowest + (m - 1) * hold, slowest + below + 2 * below0 * near + (m - 1) * (half + hold))
        return np.asarray(above + 2 * stages * near + np.where(m >= below1 + 2, np.maximum(steady, short), short))

    def _interleaved(self, slowest: Floats, above: Floats, stages: Any, below: Floats, below0: Any, below1: Any) -> Floats:
        vpp, m = self.boxes.vpp[:, None].astype(np.float64), self.micro
        rounds = (vpp - 1) / vpp
        least, most = (2 * n + (vpp - 1) * s.sum(axis=1, keepdims=True) for n, s in ((below0, self.s0), (below1, self.s1)))
        waits = np.zeros_like(slowest)
        for share, layer in zip(self.shares, (self.forward, self.backward), strict=True):
            others = rounds * (self.n0 * layer).sum(axis=1, keepdims=True)
            slope = self.near - share * slowest / vpp
            waits = waits + np.maximum(0.0, others + below / vpp + np.where(slope > 0, least, most) * slope)
        steady = m * slowest + np.where(m * vpp >= most + 2, waits, 0.0)
        return np.asarray(above / vpp + 2 * stages * self.near + steady)

    def once_s(self, chains_s: Floats) -> Floats:
        """What is done once at least, where the chains take so long at least, (R,).

        It hides behind the first stage. One that is slower than a micro batch's share of the chains costs more than it hides, as no more
        than a stage's own time can hide; and so does recompute there, where the stages follow each other once.
        """
        ids, cuts, overlap = self.boxes.ids, self.cuts, self.limits.dp_overlap
        first, micro = ids[:, 0], self.micro[:, 0]
        share_s = chains_s / micro
        most = self.n1[:, 0] - self.s0[:, 0] + 1.0
        layers = np.minimum(most, share_s / cuts.layer_s[first])
        head = self._head(first)
        forward = layers * cuts.most_forward_s[first] + cuts.first_forward_s[first] + head
        redone = np.minimum(most * cuts.slow_backward_s[first], share_s)
        plain = layers * cuts.most_backward_s[first]
        backward = np.where(self.boxes.vpp > 1, np.maximum(plain, redone), plain) + cuts.first_backward_s[first] + head
        even = np.maximum(self.even, 0)

        def most_of(tables: Floats) -> Floats:
            """Of the block's fullest stage, and of those at the ends of the pipeline."""
            lone = self.s1.sum(axis=1, keepdims=True) == 1
            found = tables[ids, MIDDLE, even]
            for role, here in ((FIRST, self.first & ~lone), (LAST, self.last & ~lone), (WHOLE, np.broadcast_to(lone, ids.shape))):
                layers = np.where(self.s1 == 1, self.n0, self.boxes.vpp[:, None])
                found = np.where(here & self.present, np.maximum(found, tables[ids, role, layers]), found)
            return np.asarray(found)

        reduce = np.maximum(0.0, most_of(cuts.reduce_s) - overlap * backward[:, None])
        gather = np.maximum(0.0, most_of(cuts.gather_s) - overlap * forward[:, None])
        return np.asarray(np.where(self.present, reduce + gather + most_of(cuts.optimizer_s), 0.0).max(axis=1))

    def _head(self, first: Ints) -> Floats:
        """The head, where the first stage may be the last."""
        return np.where(self.s0.sum(axis=1) == 1, self.cuts.head_s[first], 0.0)


def _slowest_s(layers: Ints, stages: Ints, even: Ints, layer_s: Floats, head_s: Floats) -> Floats:
    """The slowest stage of a block at least: layers spread evenly, of which the last stage takes fewer where it holds the head."""
    plain = even * layer_s
    with np.errstate(divide="ignore", invalid="ignore"):
        cross = np.where(layer_s > 0, (layers + head_s / layer_s) / np.maximum(stages, 1), 0.0)
    found = np.full(plain.shape, np.inf)
    for each in (np.floor(cross), np.ceil(cross)):
        of_last = np.maximum(1.0, layers - (stages - 1) * each)
        found = np.minimum(found, np.maximum(np.where(stages > 1, each * layer_s, 0.0), of_last * layer_s + head_s))
    return np.asarray(np.where(head_s > 0, np.maximum(plain * (stages == 0), found), plain))


def likely_plans(boxes: Boxes, cuts: Cuts, limits: Limits, *, share: float) -> Boxes:
    """One plan of each row that may be good: chips that get most from their number first, layers by speed, no stage that helps nobody.

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
        more = np.clip(np.minimum(np.minimum(room // size, left), largest[rows, at] - stages[rows, at]), 0, None) * present[rows, at]
        stages[rows, at] += more
        room, left = room - more * chips[rows, at], left - more
    layers = stages * least
    for _ in range(limits.layers):
        short = layers.sum(axis=1) < limits.layers
        if not short.any():
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            next_s = np.where(present, (layers + 1) / stages * layer_s, np.inf)
        at = next_s.argmin(axis=1)
        layers[rows[short], at[short]] += 1
    even = -(-layers // np.maximum(stages, 1))
    stages = np.where(present, np.maximum(boxes.stages_from, -(-layers // np.maximum(even, 1))), 0)
    return replace(boxes, stages_from=stages, stages_to=stages, layers_from=layers, layers_to=layers)
