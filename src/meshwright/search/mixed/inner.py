"""The inner problem: layers and recomputation of each stage, for given blocks of stages, exactly.

A block is a run of stages on one pool. From the last stage to the first, a partial plan is known by the layers below, by the time D that a
micro batch takes below, and by V, the longest chain of the closed form so far. Both only make what is above worse when they grow, so of
the partial plans with the same layers below only those stay that no other beats in both: a dynamic program, exact for the closed form.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.pipeline import chain_s, interleaved_chain_s, pipeline_of_stages_s
from meshwright.cost.shapes import Floats
from meshwright.layout import SCHEDULES
from meshwright.search.mixed.curves import MIDDLE, ROLES, Curve, Once
from meshwright.search.mixed.stages import OneWay, StageTable, role_of, stage_table

__all__ = ["Block", "Case", "Chosen", "Solved", "TableKey", "in_flight", "links_of", "once_s", "solve", "value_s"]

Ints = NDArray[np.int64]
TableKey = tuple[int, float, int, OneWay | None]
"""Role, micro batches in flight, chunks, and how the stage must recompute."""
_SAME = 1e-12
"""Relative difference below which two times are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A run of stages on one pool."""

    curve: Curve
    once: tuple[Once, ...]
    """By role."""
    stages: int
    layers: int
    chips_per_stage: int
    domain: int
    """Chips of a fast domain."""
    limit_bytes: float
    only: OneWay | None = None
    """How all its stages recompute; None leaves it to each."""
    tables: dict[TableKey, StageTable] = field(default_factory=dict, compare=False, repr=False)
    """Stages that were priced: one book per curve, shared by its blocks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What all blocks share."""

    num_microbatches: int
    vpp: int
    blocking: bool
    """Whether messages stop the stage."""
    dp_overlap: float
    overhead_s: float
    prefix: int
    """Layers of the model's first segment, where it has two."""
    even: bool = False
    """Whether all stages of a block have equally many layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """One stage of a solution."""

    layers: int
    way: int
    redone: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Solved:
    """The best assignment."""

    stages: tuple[Chosen, ...]
    bound_s: float
    """No assignment of these blocks takes less."""


def in_flight(stage: int, *, pp: int, vpp: int, num_microbatches: int) -> float:
    """Micro batches that a stage holds at its peak, as `cost.stages.place_stages` counts them."""
    if vpp == 1:
        return float(min(pp - stage, num_microbatches))
    return min(2 * (pp - stage - 1) + (vpp - 1) * pp + 1, num_microbatches * vpp) / vpp


def links_of(blocks: Sequence[Block]) -> Floats:
    """One message over each boundary, (pp - 1,)."""
    pp = sum(block.stages for block in blocks)
    found: list[float] = []
    for i, block in enumerate(blocks):
        near = block.chips_per_stage * pp <= block.domain
        found += [block.curve.near_message_s if near else block.curve.message_s] * (block.stages - 1)
        if i + 1 < len(blocks):
            found.append(max(block.curve.cross_message_s, blocks[i + 1].curve.cross_message_s))
    return np.array(found)


def solve(blocks: Sequence[Block], case: Case, *, below_s: float = np.inf) -> Solved | None:
    """Return the assignment that the closed form gives least; None where none fits or none is below `below_s`.

    What a step takes once goes by the fullest stage, which the dynamic program does not know before the end. So it is solved for a stage
    that is at least so full; where its answer's is fuller, the answers divide into those that are less full and those that are as full.
    """
    solver = _Solver(tuple(blocks), case, below_s)
    start = tuple(_Fullness(role=MIDDLE, layers=-(-block.layers // block.stages)) for block in blocks)
    queue = [_Task(bound_s=0.0, number=0, least=start, most=(np.inf,) * len(blocks))]
    best: tuple[float, Solved] | None = None
    open_s, number = np.inf, 0
    while queue and number < MOST_TASKS:
        task = heapq.heappop(queue)
        if best is not None and task.bound_s >= best[0] * (1 - _SAME):
            break
        solved = solver.run(task.least, task.most)
        if solved is None:
            continue
        value = value_s(blocks, case, solved)
        if best is None or value < best[0]:
            best = value, solved
            solver.below_s = min(below_s, value)
        if solved.bound_s < value * (1 - _SAME):
            parts = list(_divided(blocks, solved, task, number))
            number += len(parts)
            for part in parts:
                heapq.heappush(queue, part)
            if not parts:  # what the chains do not know: messages that stretch the steady state, recompute of interleaved stages
                open_s = min(open_s, solved.bound_s)
    if best is None:
        return None
    bound = min([best[0], open_s, *(task.bound_s for task in queue)])
    return replace(best[1], bound_s=bound)


MOST_TASKS = 64
"""Divisions of one inner problem at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fullness:
    """A stage by which the exchange of its block is reckoned."""

    role: int
    layers: int

    def params(self, block: Block) -> float:
        """Parameters of one rank."""
        return float(sum(each[self.role] + each[len(ROLES)] * self.layers for each in block.curve.params))


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class _Task:
    """The inner problem with each block's fullest stage between two bounds."""

    bound_s: float
    number: int
    least: tuple[_Fullness, ...] = field(compare=False)
    most: tuple[float, ...] = field(compare=False)
    """Parameters that no stage of a block reaches."""


def _divided(blocks: Sequence[Block], solved: Solved, task: _Task, number: int) -> Iterator[_Task]:
    """Divide by the fullest stage of a block that is fuller than was reckoned: less full, and as full."""
    start = 0
    for i, block in enumerate(blocks):
        own = [
            _Fullness(role=role_of(is_first=stage == 0, is_last=stage == len(solved.stages) - 1), layers=solved.stages[stage].layers)
            for stage in range(start, start + block.stages)
        ]
        start += block.stages
        fullest = max(own, key=lambda each: each.params(block))
        reached = fullest.params(block)
        if reached > task.least[i].params(block) * (1 + _SAME):
            more = (*task.least[:i], fullest, *task.least[i + 1 :])
            less = (*task.most[:i], reached, *task.most[i + 1 :])
            yield _Task(bound_s=solved.bound_s, number=number + 1, least=task.least, most=less)
            yield _Task(bound_s=solved.bound_s, number=number + 2, least=more, most=task.most)
            return


@dataclass(frozen=True, kw_only=True, slots=True)
class _Labels:
    """Partial plans, (n,): layers below, time below, longest chain; and where each came from."""

    layers: Ints
    down_s: Floats
    chain_s: Floats
    parent: Ints
    own: Ints
    """Layers of the stage that was added."""


class _Solver:
    def __init__(self, blocks: tuple[Block, ...], case: Case, below_s: float) -> None:
        self.blocks, self.case, self.below_s = blocks, case, below_s
        self.place = [i for i, block in enumerate(blocks) for _ in range(block.stages)]
        self.pp = len(self.place)
        self.total = sum(block.layers for block in blocks)
        links = links_of(blocks)
        self.links = links if case.vpp == 1 or not len(links) else np.full_like(links, links.mean())  # as the closed form has it
        self.down_s, self.up_s = ((case.vpp - 1) / case.vpp * each for each in self._whole_s())

        self.least_s = [float(b.curve.forward_layer_s.min() + b.curve.backward_layer_s.min()) for b in blocks]
        work = [least * block.layers for least, block in zip(self.least_s, blocks, strict=True)]
        self.least_above_s = [sum(work[:i]) for i in range(len(blocks))]

    def _whole_s(self) -> tuple[float, float]:
        """Forward and backward of all stages, where nothing is recomputed that need not be."""
        forward = backward = 0.0
        start = 0
        for i, block in enumerate(self.blocks):
            prefix = min(max(self.case.prefix - start, 0), block.layers)
            counts = np.array([block.layers - prefix, prefix])
            start += block.layers
            ends = [role_of(is_first=True, is_last=self.pp == 1)] if i == 0 else []
            ends += [role_of(is_first=False, is_last=True)] if i + 1 == len(self.blocks) and self.pp > 1 else []
            forward += float(block.curve.forward_layer_s @ counts + sum(block.curve.forward_base_s[end] for end in ends))
            bases = block.curve.backward_base_s[:, ends].min(axis=0).sum()
            backward += float((block.curve.backward_layer_s @ counts).min() + bases)
        return forward, backward

    def _table(self, stage: int) -> StageTable:
        """Stages at a place by layers 1 .. of all blocks, without layers of the prefix."""
        block = self.blocks[self.place[stage]]
        role = role_of(is_first=stage == 0, is_last=stage == self.pp - 1)
        held = in_flight(stage, pp=self.pp, vpp=self.case.vpp, num_microbatches=self.case.num_microbatches)
        key = role, held, self.case.vpp, block.only
        if key not in block.tables:
            layers = np.arange(1, self.total + 1)
            block.tables[key] = self._price(stage, layers, np.zeros_like(layers))
        return block.tables[key]

    def _price(self, stage: int, layers: Ints, prefix: Ints) -> StageTable:
        block = self.blocks[self.place[stage]]
        return stage_table(
            block.curve,
            layers=layers,
            prefix=prefix,
            role=role_of(is_first=stage == 0, is_last=stage == self.pp - 1),
            in_flight=in_flight(stage, pp=self.pp, vpp=self.case.vpp, num_microbatches=self.case.num_microbatches),
            vpp=self.case.vpp,
            limit_bytes=block.limit_bytes,
            only=block.only,
        )

    def run(self, least: tuple[_Fullness, ...], most: tuple[float, ...]) -> Solved | None:
        """The best chains of all stages that are less full than `most`, with the exchange of stages as full as `least`."""
        self.least, self.most = least, most
        steps: list[_Labels] = []
        labels = _Labels(
            layers=np.zeros(1, dtype=np.int64),
            down_s=np.zeros(1),
            chain_s=np.zeros(1),
            parent=np.zeros(1, dtype=np.int64),
            own=np.zeros(1, dtype=np.int64),
        )
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
        end = sum(b.layers for b in self.blocks[self.place[stage] :])  # layers below the block's top
        above = stage - first
        least = self.case.vpp
        most = end - above * least - below.layers  # what is left, if each stage above takes the least
        lowest = np.where(above == 0, end - below.layers, least)
        if self.case.even:
            most = lowest = np.full_like(most, self.blocks[self.place[stage]].layers // self.blocks[self.place[stage]].stages)
        counts = np.maximum(0, most - lowest + 1)
        parent = np.repeat(np.arange(len(below.layers)), counts)
        own = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(lowest, counts)
        layers = below.layers[parent] + own
        start = self.total - layers
        prefix = np.clip(self.case.prefix - start, 0, own)
        forward, backward = self._times(stage, own, prefix)
        fits = np.isfinite(backward) & (own < self._too_full(stage))
        parent, own, layers, forward, backward = (each[fits] for each in (parent, own, layers, forward, backward))
        message = float(self.links[stage]) if stage < self.pp - 1 else 0.0
        scale = self.case.vpp
        both = forward + backward
        chains = self._chain(stage, forward, backward, below.down_s[parent] + (2 * message))
        taken = both / scale + 2 * message
        chain = np.maximum(chains, taken + below.chain_s[parent])
        if stage == 0:
            chain = chain + self._once_s(forward, backward)
        keep = chain + self._above_s(stage, end - layers) < self.below_s
        return _undominated(
            _Labels(
                layers=layers[keep], down_s=(below.down_s[parent] + taken)[keep], chain_s=chain[keep], parent=parent[keep], own=own[keep]
            )
        )

    def _above_s(self, stage: int, left: Ints) -> Floats:
        """What a micro batch takes above a stage at least, where `left` layers of its block are left."""
        number = self.place[stage]
        return np.asarray((self.least_above_s[number] + left * self.least_s[number]) / self.case.vpp)

    def _too_full(self, stage: int) -> float:
        """Layers from which on a stage is fuller than its block's may be."""
        number = self.place[stage]
        if np.isinf(self.most[number]):
            return np.inf
        role = role_of(is_first=stage == 0, is_last=stage == self.pp - 1)
        params = self.blocks[number].curve.params
        base, layer = sum(float(each[role]) for each in params), sum(float(each[len(ROLES)]) for each in params)
        return (self.most[number] * (1 - _SAME) - base) / layer

    def _times(self, stage: int, own: Ints, prefix: Ints) -> tuple[Floats, Floats]:
        if prefix.any():
            found = self._price(stage, own, prefix)
            return found.forward_s, found.backward_s
        table = self._table(stage)
        return table.forward_s[own - 1], table.backward_s[own - 1]

    def _chain(self, stage: int, forward: Floats, backward: Floats, below: Floats) -> Floats:
        case, n = self.case, self.pp - 1 - stage
        if case.vpp == 1:
            to_next = float(self.links[stage]) if n else 0.0
            to_last = float(self.links[stage - 1]) if stage else 0.0
            return chain_s(
                num_microbatches=case.num_microbatches,
                count_below=n,
                forward_s=forward,
                backward_s=backward,
                below_s=below,
                hold_s=case.blocking * (to_next + to_last),
                once_s=case.blocking * to_next,
            )
        warmup = 2 * n + (case.vpp - 1) * self.pp
        mean = float(self.links[0]) if len(self.links) else 0.0
        return interleaved_chain_s(
            num_microbatches=case.num_microbatches,
            warmup=warmup,
            vpp=case.vpp,
            forward_s=forward,
            backward_s=backward,
            below_s=below + (warmup - 2 * n) * mean,
            down_s=self.down_s,
            up_s=self.up_s,
        )

    def _once_s(self, forward: Floats, backward: Floats) -> Floats:
        """What a step takes once at least, by the first stage's times: of the pool where it is most."""
        found = np.zeros_like(forward)
        for block, full in zip(self.blocks, self.least, strict=True):
            role = full.role if self.pp > 1 else len(ROLES) - 1
            found = np.maximum(found, once_s(block.once[role], full.layers, forward, backward, self.case))
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


def once_s(once: Once, layers: int, forward: Floats, backward: Floats, case: Case) -> Floats:
    """Exposed exchange and optimizer where the fullest stage has so many layers."""
    reduce = np.maximum(0.0, once.reduce_s[layers] - case.dp_overlap * backward)
    gather = np.maximum(0.0, once.gather_s[layers] - case.dp_overlap * forward)
    return np.asarray(reduce + gather + once.optimizer_s[layers])


def _undominated(labels: _Labels) -> _Labels:
    """Of the partial plans with the same layers below, those that no other beats in both times."""
    order = np.lexsort((labels.down_s, labels.chain_s, labels.layers))
    layers, down = labels.layers[order], labels.down_s[order]
    fresh = np.ones(len(order), dtype=bool)
    fresh[1:] = layers[1:] != layers[:-1]
    group = np.cumsum(fresh)
    lift = (float(down.max(initial=0.0)) + 1.0) * (group[-1] - group) if len(order) else group
    running = np.minimum.accumulate(down + lift) if len(order) else down
    keep = fresh.copy()
    keep[1:] |= (down + lift)[1:] < running[:-1] * (1 - _SAME)
    chosen = order[keep]
    return _Labels(**{name: getattr(labels, name)[chosen] for name in _Labels.__slots__})


def value_s(blocks: Sequence[Block], case: Case, solved: Solved) -> float:
    """Return what the closed form gives an assignment, all of a step."""
    forward, backward = (np.array([getattr(stage, name) for stage in solved.stages]) for name in ("forward_s", "backward_s"))
    pipeline = pipeline_of_stages_s(
        schedule=SCHEDULES.index("1f1b"),
        vpp=case.vpp,
        num_microbatches=case.num_microbatches,
        forward_s=forward,
        backward_s=backward,
        p2p_s=links_of(blocks),
        p2p="blocking" if case.blocking else "overlapped",
    ).pipeline_s
    once, start = 0.0, 0
    for block in blocks:
        own = range(start, start + block.stages)
        for stage in own:
            role = role_of(is_first=stage == 0, is_last=stage == len(solved.stages) - 1)
            once = max(once, float(once_s(block.once[role], solved.stages[stage].layers, forward[0], backward[0], case)))
        start += block.stages
    return float(pipeline) + once + case.overhead_s
