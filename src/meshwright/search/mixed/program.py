"""The dynamic program of the inner problem: layers and recomputation of each stage, for given
blocks of stages.

A block is a run of stages on one pool. From the last stage to the first, a partial plan is known by
the layers below, by the time D that a micro batch takes below, and by V, the longest chain of the
closed form so far. Both only make what is above worse when they grow, so of the partial plans with
the same layers below only those stay that no other beats in both.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from meshwright.cost.stages import Floats
from meshwright.search.mixed.blocks import (
    Block,
    Case,
    Chosen,
    Ints,
    Solved,
    chosen,
    links_of,
    once_s,
    stage_chain_s,
    table_at,
    table_of,
)
from meshwright.search.mixed.curves import ROLES, Rows, role_of

__all__ = [
    "SAME",
    "Fullness",
    "Labels",
    "Parts",
    "Program",
    "StagesFromLast",
    "Within",
    "divided",
    "grown",
    "undominated",
]

SAME = 1e-12
"""Relative difference below which two times are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fullness:
    """A stage by which the exchange of its block is reckoned."""

    role: int
    layers: int

    def params(self, block: Block) -> float:
        """Parameters of one rank."""
        return float(
            sum(each[self.role] + each[len(ROLES)] * self.layers for each in block.curve.params)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Within:
    """The part of the assignments that is looked at: what the program does not know before the end
    lies between two bounds."""

    fullest: tuple[Fullness, ...]
    """Of each block, at least."""
    params: tuple[float, ...]
    """Parameters that no stage of a block reaches."""
    up_s: float = 0.0
    """Backwards of all stages, at least."""
    most_up_s: float = np.inf
    """What they stay below."""


def divided(
    within: Within, stages: Iterable[tuple[Block, Sequence[Fullness]]]
) -> tuple[Within, ...]:
    """Divide by the fullest stage of the first block that is fuller than was reckoned: less full,
    and as full; nothing where none is."""
    for i, (block, own) in enumerate(stages):
        fullest = max(own, key=lambda each: each.params(block), default=within.fullest[i])
        reached = fullest.params(block)
        if reached > within.fullest[i].params(block) * (1 + SAME):
            less = (*within.params[:i], reached, *within.params[i + 1 :])
            more = (*within.fullest[:i], fullest, *within.fullest[i + 1 :])
            return replace(within, params=less), replace(within, fullest=more)
    return ()


T = TypeVar("T")


class Parts(Generic[T]):
    """Parts of a problem that are left to be solved; that with the least bound goes first."""

    def __init__(self, whole: T | None = None) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self.made = 0
        """How many there ever were; of equal bounds the older part goes first."""
        if whole is not None:
            self.add(0.0, whole)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, bound_s: float, part: T) -> None:
        """Put in a part, and what none of its assignments undercuts."""
        self.made += 1
        heapq.heappush(self._heap, (bound_s, self.made, part))

    def pop(self) -> tuple[float, T]:
        """Take out the part with the least bound."""
        bound_s, _, part = heapq.heappop(self._heap)
        return bound_s, part

    @property
    def least_s(self) -> float:
        """The least bound of those that are left."""
        return self._heap[0][0] if self._heap else np.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels(Rows):
    """Partial plans, (n,): layers below, time below, longest chain; and where each came from."""

    layers: Ints
    down_s: Floats
    chain_s: Floats
    parent: Ints
    own: Ints
    """Layers of the stage that was added."""

    def __len__(self) -> int:
        return len(self.layers)


def grown(lowest: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Partial plans that a stage is put on, and its layers: `counts` of them from `lowest` on."""
    parent = np.repeat(np.arange(len(counts)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return parent, np.arange(len(parent)) - first + lowest[parent]


def undominated(keys: Ints, labels: Labels) -> Ints:
    """Numbers of the partial plans of which no other with the same key is better in both times."""
    if not len(keys):
        return keys
    order = np.lexsort((labels.down_s, labels.chain_s, keys))
    keys, down = keys[order], labels.down_s[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = keys[1:] != keys[:-1]
    group = np.cumsum(fresh)
    # Sorted by chain within the same key, a plan is beaten where an earlier one has less below. The
    # lift sinks from group to group by more than any time, so that one running minimum over all
    # rows starts anew with each group.
    lift = (float(down.max()) + 1.0) * (group[-1] - group)
    running = np.minimum.accumulate(down + lift)
    keep = fresh.copy()
    keep[1:] |= (down + lift)[1:] < running[:-1] * (1 - SAME)
    return np.asarray(order[keep])


L = TypeVar("L", bound=Labels)


class StagesFromLast:
    """What the programs of given blocks and of open orders share: stages are put on top of partial
    plans, from the last to the first.

    A stage's chain hangs on what lies below it and on how many stages there are below, both of
    which a partial plan knows; from the first stage down it would know neither.
    """

    case: Case
    layers: int
    """Of the whole model."""
    below_s: float
    """Only plans that take less are looked for."""

    def _times(self, block: Block, stage: int, own: Ints, start: Ints) -> tuple[Floats, Floats]:
        """Forward and backward of stages with so many layers that begin at a layer of the model."""
        prefix = np.clip(self.case.prefix - start, 0, own)
        # The book of a block knows layers of the second segment alone; the few stages that have
        # some of the first are priced by themselves.
        if prefix.any():
            found = table_at(block, stage=stage, case=self.case, layers=own, prefix=prefix)
            return found.forward_s, found.backward_s
        table = table_of(block, stage=stage, case=self.case, most=self.layers)
        return table.forward_s[own - 1], table.backward_s[own - 1]

    @staticmethod
    def _path(steps: Sequence[L], best: int) -> Iterator[tuple[L, int]]:
        """The partial plans that a whole one was made of, by stage from the first on."""
        for labels in reversed(steps):
            yield labels, best
            best = int(labels.parent[best])

    def _solved(self, assigned: Iterable[tuple[Block, int]], bound_s: float) -> Solved:
        """The stages of a plan, priced by their blocks and layers."""
        stages: list[Chosen] = []
        start = 0
        for block, own in assigned:
            layers, prefix = (
                np.array([count]) for count in (own, int(np.clip(self.case.prefix - start, 0, own)))
            )
            table = table_at(block, stage=len(stages), case=self.case, layers=layers, prefix=prefix)
            stages.append(chosen(table, 0, own))
            start += own
        return Solved(stages=tuple(stages), bound_s=bound_s)


class Program(StagesFromLast):
    """Partial plans of given blocks from the last stage to the first."""

    def __init__(self, blocks: tuple[Block, ...], case: Case, below_s: float) -> None:
        self.blocks, self.case, self.below_s = blocks, case, below_s
        self.place = [i for i, block in enumerate(blocks) for _ in range(block.stages)]
        self.pp = len(self.place)
        self.layers = sum(block.layers for block in blocks)
        links = links_of(blocks)
        # Of interleaved stages every message counts as the mean one, as in the closed form.
        mean = case.vpp > 1 and len(links)
        self.links = np.full_like(links, links.mean()) if mean else links
        self.forward_s, self.backward_s = self._whole_s()
        self.least_s = [
            float(b.curve.forward_layer_s.min() + b.curve.backward_layer_s.min()) for b in blocks
        ]
        work = [least * block.layers for least, block in zip(self.least_s, blocks, strict=True)]
        # What the blocks above take at least, nothing recomputed: added to a partial plan it says
        # whether the plan can still stay below the ceiling.
        self.least_above_s = [sum(work[:i]) for i in range(len(blocks))]

    def _whole_s(self) -> tuple[float, float]:
        """Forward of all stages; and backward, where nothing is recomputed that need not be."""
        forward = backward = 0.0
        start = 0
        for i, block in enumerate(self.blocks):
            prefix = min(max(self.case.prefix - start, 0), block.layers)
            counts = np.array([block.layers - prefix, prefix])
            start += block.layers
            roles = [role_of(stage, self.pp) for stage in range(self.pp) if self.place[stage] == i]
            forward += float(
                block.curve.forward_layer_s @ counts + block.curve.forward_base_s[roles].sum()
            )
            bases = block.curve.backward_base_s[:, roles].min(axis=0).sum()
            backward += float((block.curve.backward_layer_s @ counts).min() + bases)
        return forward, backward

    def run(self, within: Within) -> Solved | None:
        """The best chains of what lies within, with the exchange and the waits at their least."""
        self.within = within
        rounds = (self.case.vpp - 1) / self.case.vpp
        self.waits_s = rounds * self.forward_s, rounds * max(self.backward_s, within.up_s)
        most_s = self.forward_s + within.most_up_s * (1 - SAME)
        self.most_down_s = most_s / self.case.vpp + 2 * float(self.links.sum())
        steps: list[Labels] = []
        none, nothing = np.zeros(1, dtype=np.int64), np.zeros(1)
        labels = Labels(layers=none, down_s=nothing, chain_s=nothing, parent=none, own=none)
        for stage in range(self.pp - 1, -1, -1):
            labels = self._add(stage, labels)
            if not len(labels):
                return None
            steps.append(labels)
        best = int(np.argmin(labels.chain_s))
        path = (int(each.own[at]) for each, at in self._path(steps, best))
        assigned = ((self.blocks[self.place[stage]], own) for stage, own in enumerate(path))
        return self._solved(assigned, float(labels.chain_s[best]))

    def _add(self, stage: int, below: Labels) -> Labels:
        """Put one stage on top of all partial plans."""
        block = self.blocks[self.place[stage]]
        end = sum(b.layers for b in self.blocks[self.place[stage] :])  # below the block's top
        parent, own = self._grown(stage, end - below.layers)
        layers = below.layers[parent] + own
        forward, backward = self._times(block, stage, own, self.layers - layers)
        fits = np.isfinite(backward) & (own < self._too_full(stage))
        parent, own, layers = parent[fits], own[fits], layers[fits]
        forward, backward = forward[fits], backward[fits]
        message = float(self.links[stage]) if stage < self.pp - 1 else 0.0
        chains = self._chain(stage, forward, backward, below.down_s[parent] + (2 * message))
        taken = (forward + backward) / self.case.vpp + 2 * message
        # The longest chain is that of this stage, or one that begins below it.
        chain = np.maximum(chains, taken + below.chain_s[parent])
        down = below.down_s[parent] + taken
        if stage == 0:
            chain = self._stretched(chain, down) + self._once_s(forward, backward)
        # Plans that cannot stay below the ceiling even with the quickest stages above go at once.
        above_s = self._above_s(stage, end - layers)
        keep = (chain + above_s < self.below_s) & (down + above_s < self.most_down_s)
        found = Labels(layers=layers, down_s=down, chain_s=chain, parent=parent, own=own).take(keep)
        return found.take(undominated(found.layers, found))

    def _grown(self, stage: int, left: Ints) -> tuple[Ints, Ints]:
        """Partial plans that a stage may be put on, and its layers, of `left` that its block still
        has to place: only counts from which the rest of the block can be filled.

        Without that most labels would be dead ends, found out only at the top.
        """
        block = self.blocks[self.place[stage]]
        above = stage - self.place.index(self.place[stage])  # stages of the block
        most = left - above * self.case.vpp  # each stage above takes the least
        lowest = left if above == 0 else np.full_like(left, self.case.vpp)
        if self.case.even:
            most = lowest = np.full_like(left, block.layers // block.stages)
        return grown(lowest, np.maximum(0, most - lowest + 1))

    def _above_s(self, stage: int, left: Ints) -> Floats:
        """What a micro batch takes above a stage at least; of its block `left` layers are left."""
        number = self.place[stage]
        above_s = self.least_above_s[number] + left * self.least_s[number]
        return np.asarray(above_s / self.case.vpp)

    def _too_full(self, stage: int) -> float:
        """Layers from which on a stage is fuller than its block's may be."""
        number = self.place[stage]
        if np.isinf(self.within.params[number]):
            return np.inf
        params = self.blocks[number].curve.params
        base, layer = (
            sum(float(each[at]) for each in params) for at in (role_of(stage, self.pp), len(ROLES))
        )
        return (self.within.params[number] * (1 - SAME) - base) / layer

    def _chain(self, stage: int, forward: Floats, backward: Floats, below: Floats) -> Floats:
        return stage_chain_s(
            self.case,
            stage=stage,
            forward_s=forward,
            backward_s=backward,
            below_s=below,
            to_next_s=float(self.links[stage]) if stage < self.pp - 1 else 0.0,
            to_last_s=float(self.links[stage - 1]) if stage else 0.0,
            message_s=float(self.links[0]) if len(self.links) else 0.0,
            waits_s=self.waits_s,
        )

    def _stretched(self, chain: Floats, down: Floats) -> Floats:
        """The chains of whole plans, at least as long as messages stretch the steady state."""
        case, message = self.case, float(self.links.mean()) if len(self.links) else 0.0
        if case.vpp > 1:
            forward, backward = (
                each / (self.pp * case.vpp) for each in (self.forward_s, self.within.most_up_s)
            )
            once, twice = (
                (case.vpp - 1) * (message - min(forward, backward)),
                case.vpp * (message - max(forward, backward)),
            )
            return chain + max(0, case.num_microbatches - self.pp) * max(0.0, once, twice)
        if case.blocking:
            return chain
        rounds, rest = divmod(case.num_microbatches - 1, self.pp)
        return np.maximum(
            chain, (rounds + 1) * down + rest * min(self.least_s) + 2 * message * max(rest - 1, 0)
        )

    def _once_s(self, forward: Floats, backward: Floats) -> Floats:
        """What a step takes once at least, by the first stage's times: of the pool with most."""
        found: Any = np.zeros_like(forward)
        for block, full in zip(self.blocks, self.within.fullest, strict=True):
            role = full.role if self.pp > 1 else len(ROLES) - 1
            own_s = once_s(block.once[role], full.layers, forward, backward, self.case)
            found = np.maximum(found, own_s)
        return np.asarray(found + self.case.overhead_s)
