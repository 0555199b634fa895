"""The dynamic program of the inner problem: layers and recomputation of each stage, for given
blocks of stages.

A block is a run of stages on one pool. From the last stage to the first, a partial plan is known by
the layers below, by the time D that a micro batch takes below, and by V, the longest chain of the
closed form so far. Both only make what is above worse when they grow, so of the partial plans with
the same layers below only those stay that no other beats in both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Floats
from meshwright.search.mixed.blocks import (
    Block,
    Case,
    Chosen,
    Solved,
    in_flight,
    links_of,
    once_s,
    stage_chain_s,
    table_of,
)
from meshwright.search.mixed.curves import ROLES, StageTable, role_of, stage_table

__all__ = ["SAME", "Fullness", "Program", "Within"]

Ints = NDArray[np.int64]
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Labels:
    """Partial plans, (n,): layers below, time below, longest chain; and where each came from."""

    layers: Ints
    down_s: Floats
    chain_s: Floats
    parent: Ints
    own: Ints
    """Layers of the stage that was added."""


class Program:
    """Partial plans from the last stage to the first."""

    def __init__(self, blocks: tuple[Block, ...], case: Case, below_s: float) -> None:
        self.blocks, self.case, self.below_s = blocks, case, below_s
        self.place = [i for i, block in enumerate(blocks) for _ in range(block.stages)]
        self.pp = len(self.place)
        self.total = sum(block.layers for block in blocks)
        links = links_of(blocks)
        self.links = (
            links if case.vpp == 1 or not len(links) else np.full_like(links, links.mean())
        )  # as the closed form has it
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
            roles = [self._role(stage) for stage in range(self.pp) if self.place[stage] == i]
            forward += float(
                block.curve.forward_layer_s @ counts + block.curve.forward_base_s[roles].sum()
            )
            bases = block.curve.backward_base_s[:, roles].min(axis=0).sum()
            backward += float((block.curve.backward_layer_s @ counts).min() + bases)
        return forward, backward

    def _role(self, stage: int) -> int:
        return role_of(is_first=stage == 0, is_last=stage == self.pp - 1)

    def _table(self, stage: int) -> StageTable:
        """Stages at a place by layers 1 .. of all blocks, without layers of the prefix."""
        return table_of(
            self.blocks[self.place[stage]], stage=stage, pp=self.pp, case=self.case, most=self.total
        )

    def _price(self, stage: int, layers: Ints, prefix: Ints) -> StageTable:
        block = self.blocks[self.place[stage]]
        return stage_table(
            block.curve,
            layers=layers,
            prefix=prefix,
            role=self._role(stage),
            in_flight=in_flight(
                stage, pp=self.pp, vpp=self.case.vpp, num_microbatches=self.case.num_microbatches
            ),
            vpp=self.case.vpp,
            limit_bytes=block.limit_bytes,
            only=block.only,
        )

    def run(self, within: Within) -> Solved | None:
        """The best chains of what lies within, with the exchange and the waits at their least."""
        self.within = within
        rounds = (self.case.vpp - 1) / self.case.vpp
        self.down_s, self.up_s = rounds * self.forward_s, rounds * max(self.backward_s, within.up_s)
        most_s = self.forward_s + within.most_up_s * (1 - SAME)
        self.most_down_s = most_s / self.case.vpp + 2 * float(self.links.sum())
        steps: list[_Labels] = []
        labels = _Labels(
            layers=np.zeros(1, dtype=np.int64),
            down_s=np.zeros(1),
            chain_s=np.zeros(1),
            parent=np.zeros(1, dtype=np.int64),
            own=np.zeros(1, dtype=np.int64),
        )
        # From the last stage up: a stage's chain hangs on what lies below it and on how many stages
        # there are below, both of which a partial plan knows; from the first down it knows neither.
        for stage in range(self.pp - 1, -1, -1):
            labels = self._add(stage, labels)
            if not len(labels.layers):
                return None
            steps.append(labels)
        best = int(np.argmin(labels.chain_s))
        return Solved(stages=self._trace(steps, best), bound_s=float(labels.chain_s[best]))

    def _add(self, stage: int, below: _Labels) -> _Labels:
        """Put one stage on top of all partial plans."""
        first = stage - self.place[:stage].count(self.place[stage])  # of its block
        end = sum(
            b.layers for b in self.blocks[self.place[stage] :]
        )  # layers below the block's top
        above = stage - first
        least = self.case.vpp
        most = (
            end - above * least - below.layers
        )  # what is left, if each stage above takes the least
        lowest = np.where(above == 0, end - below.layers, least)
        # Only counts from which the rest of the block can still be filled: without this most labels
        # would be dead ends, found out only at the top.
        if self.case.even:
            most = lowest = np.full_like(
                most, self.blocks[self.place[stage]].layers // self.blocks[self.place[stage]].stages
            )
        counts = np.maximum(0, most - lowest + 1)
        parent = np.repeat(np.arange(len(below.layers)), counts)
        own = (
            np.arange(len(parent))
            - np.repeat(np.cumsum(counts) - counts, counts)
            + np.repeat(lowest, counts)
        )
        layers = below.layers[parent] + own
        start = self.total - layers
        prefix = np.clip(self.case.prefix - start, 0, own)
        forward, backward = self._times(stage, own, prefix)
        fits = np.isfinite(backward) & (own < self._too_full(stage))
        parent, own, layers, forward, backward = (
            each[fits] for each in (parent, own, layers, forward, backward)
        )
        message = float(self.links[stage]) if stage < self.pp - 1 else 0.0
        scale = self.case.vpp
        both = forward + backward
        chains = self._chain(stage, forward, backward, below.down_s[parent] + (2 * message))
        taken = both / scale + 2 * message
        chain = np.maximum(chains, taken + below.chain_s[parent])
        down = below.down_s[parent] + taken
        if stage == 0:
            chain = self._stretched(chain, down) + self._once_s(forward, backward)
        above_s = self._above_s(stage, end - layers)
        keep = (chain + above_s < self.below_s) & (down + above_s < self.most_down_s)
        return _undominated(
            _Labels(
                layers=layers[keep],
                down_s=down[keep],
                chain_s=chain[keep],
                parent=parent[keep],
                own=own[keep],
            )
        )

    def _above_s(self, stage: int, left: Ints) -> Floats:
        """What a micro batch takes above a stage at least, where `left` layers of its block are
        left."""
        number = self.place[stage]
        return np.asarray(
            (self.least_above_s[number] + left * self.least_s[number]) / self.case.vpp
        )

    def _too_full(self, stage: int) -> float:
        """Layers from which on a stage is fuller than its block's may be."""
        number = self.place[stage]
        if np.isinf(self.within.params[number]):
            return np.inf
        role = self._role(stage)
        params = self.blocks[number].curve.params
        base, layer = (
            sum(float(each[role]) for each in params),
            sum(float(each[len(ROLES)]) for each in params),
        )
        return (self.within.params[number] * (1 - SAME) - base) / layer

    def _times(self, stage: int, own: Ints, prefix: Ints) -> tuple[Floats, Floats]:
        if prefix.any():
            found = self._price(stage, own, prefix)
            return found.forward_s, found.backward_s
        table = self._table(stage)
        return table.forward_s[own - 1], table.backward_s[own - 1]

    def _chain(self, stage: int, forward: Floats, backward: Floats, below: Floats) -> Floats:
        return stage_chain_s(
            self.case,
            pp=self.pp,
            stage=stage,
            forward_s=forward,
            backward_s=backward,
            below_s=below,
            to_next_s=float(self.links[stage]) if stage < self.pp - 1 else 0.0,
            to_last_s=float(self.links[stage - 1]) if stage else 0.0,
            message_s=float(self.links[0]) if len(self.links) else 0.0,
            waits_s=(self.down_s, self.up_s),
        )

    def _stretched(self, chain: Floats, down: Floats) -> Floats:
        """The chains of whole plans, at least as long as messages stretch the steady state, as
        `cost/closed_forms.py` has it."""
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
        """What a step takes once at least, by the first stage's times: of the pool where it is
        most."""
        found = np.zeros_like(forward)
        for block, full in zip(self.blocks, self.within.fullest, strict=True):
            role = full.role if self.pp > 1 else len(ROLES) - 1
            found = np.maximum(
                found, once_s(block.once[role], full.layers, forward, backward, self.case)
            )
        return found + self.case.overhead_s

    def _trace(self, steps: list[_Labels], best: int) -> tuple[Chosen, ...]:
        found: list[Chosen] = []
        below = 0
        picks: list[int] = []
        for labels in reversed(steps):
            picks.append(int(labels.own[best]))
            best = int(labels.parent[best])
        for stage, own in enumerate(picks):
            prefix = int(np.clip(self.case.prefix - below, 0, own))
            table = self._price(stage, np.array([own]), np.array([prefix]))
            found.append(
                Chosen(
                    layers=own,
                    way=int(table.way[0]),
                    redone=int(table.redone[0]),
                    forward_s=float(table.forward_s[0]),
                    backward_s=float(table.backward_s[0]),
                )
            )
            below += own
        return tuple(found)


def _undominated(labels: _Labels) -> _Labels:
    """Of the partial plans with the same layers below, those that no other beats in both times."""
    order = np.lexsort((labels.down_s, labels.chain_s, labels.layers))
    layers, down = labels.layers[order], labels.down_s[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = layers[1:] != layers[:-1]
    group = np.cumsum(fresh)
    # Sorted by chain within the same layers, a plan is beaten where an earlier one has less below.
    # The lift sinks from group to group by more than any time, so that one running minimum over all
    # rows starts anew with each group.
    lift = (float(down.max(initial=0.0)) + 1.0) * (group[-1] - group) if len(order) else group
    running = np.minimum.accumulate(down + lift) if len(order) else down
    keep = fresh.copy()
    keep[1:] |= (down + lift)[1:] < running[:-1] * (1 - SAME)
    chosen = order[keep]
    return _Labels(**{name: getattr(labels, name)[chosen] for name in _Labels.__slots__})
