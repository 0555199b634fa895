"""The dynamic program over orders of the stages: which kind of chip each stage has, its layers and
its recomputation.

As in `program.py`, from the last stage to the first, a partial plan is known by the layers below,
the time D that a micro batch takes below and the longest chain V so far; here also by the stages
that each kind has had, by the kind of the stage on top, and by whether a kind has come back. Of the
partial plans that share all of these only those stay that no other beats in both times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.stages import Floats
from meshwright.search.mixed.blocks import (
    Block,
    Case,
    Ints,
    Solved,
    once_s,
    own_message_s,
    stage_chain_s,
    value_s,
)
from meshwright.search.mixed.curves import MIDDLE, OneWay, role_of
from meshwright.search.mixed.grid import Grid
from meshwright.search.mixed.problem import MixedProblem, Score
from meshwright.search.mixed.program import (
    SAME,
    Fullness,
    Labels,
    Parts,
    StagesFromLast,
    Within,
    divided,
    grown,
    undominated,
)
from meshwright.search.mixed.reprice import Found
from meshwright.search.rules.pipeline import wants_fill, wants_whole_rounds

__all__ = ["Kind", "OrderProgram", "Ordered", "best_order", "returning_plans"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Stages of one pool under one way to cut."""

    cut: tuple[int, int]
    """Pool and option."""
    block: Block
    """One stage; its layers are all of the model's."""
    cap: int
    """Stages at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordered:
    """The best assignment with the kind of each stage."""

    kinds: tuple[int, ...]
    solved: Solved

    @property
    def runs(self) -> tuple[int, ...]:
        """The kind of each run of stages."""
        return tuple(kind for kind, _ in groupby(self.kinds))

    def blocks(self, kinds: Sequence[Kind]) -> tuple[Block, ...]:
        """Return the runs of stages of one kind, with their layers."""
        runs = [
            (kind, [stage for _, stage in run])
            for kind, run in groupby(
                zip(self.kinds, self.solved.stages, strict=True), lambda p: p[0]
            )
        ]
        return tuple(
            replace(kinds[kind].block, stages=len(run), layers=sum(stage.layers for stage in run))
            for kind, run in runs
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Labels(Labels):
    """Partial plans, (n,)."""

    used: Ints
    """Stages of each kind, (n, K)."""
    top: Ints
    """Kind of the stage on top."""
    back: NDArray[np.bool_]
    """Whether a kind has come back."""


class OrderProgram(StagesFromLast):
    """All orders of `case.pp` stages in which a kind comes back, and all splits of the layers."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        case: Case,
        *,
        layers: int,
        num_chips: int,
        below_s: float,
        most_rows: int,
    ) -> None:
        self.kinds, self.case, self.layers = tuple(kinds), case, layers
        self.num_chips, self.below_s = num_chips, below_s
        curves = [kind.block.curve for kind in kinds]
        self.least_s = np.array(
            [float(c.forward_layer_s.min() + c.backward_layer_s.min()) for c in curves]
        )
        self.chips = np.array([kind.block.chips_per_stage for kind in kinds])
        self.caps = np.array([kind.cap for kind in kinds])
        self.most = np.minimum(
            layers, below_s / (case.num_microbatches * self.least_s) + 1e-9
        ).astype(np.int64)
        self.links = self._links_s()
        self.message_s = float(self.links.min())
        self.rows, self.most_rows = 0, most_rows

    def _links_s(self) -> Floats:
        """One message from a stage of one kind to one of another, (K, K)."""
        blocks = [kind.block for kind in self.kinds]
        near = [own_message_s(block, self.case.pp) for block in blocks]
        across = np.array([block.curve.cross_message_s for block in blocks])
        return np.asarray(
            np.where(
                np.eye(len(blocks), dtype=bool), np.array(near), np.maximum(across[:, None], across)
            )
        )

    def run(self, within: Within) -> Ordered | None:
        """The best chains of what lies within, with the exchange at its least; None too where
        `most_rows` partial plans were made."""
        self.within = within
        self.waits_s = self._waits_s()
        steps: list[_Labels] = []
        labels = self._none()
        for stage in range(self.case.pp - 1, -1, -1):
            parts = [
                part
                for kind in range(len(self.kinds))
                if len(part := self._add(stage, kind, labels))
            ]
            if not parts or self.rows >= self.most_rows:
                return None
            labels = _Labels.concat(parts)
            labels = labels.take(undominated(_keys(labels), labels))
            steps.append(labels)
        # Orders in which no kind comes back are those of the first phase, and proven there.
        back = np.flatnonzero(labels.back)
        if not len(back):
            return None
        best = int(back[np.argmin(labels.chain_s[back])])
        path = [(int(each.top[at]), int(each.own[at])) for each, at in self._path(steps, best)]
        assigned = ((self.kinds[kind].block, own) for kind, own in path)
        return Ordered(
            kinds=tuple(kind for kind, _ in path),
            solved=self._solved(assigned, float(labels.chain_s[best])),
        )

    def _none(self) -> _Labels:
        one = np.zeros(1, dtype=np.int64)
        return _Labels(
            layers=one,
            used=np.zeros((1, len(self.kinds)), dtype=np.int64),
            top=one - 1,
            back=np.zeros(1, dtype=bool),
            down_s=np.zeros(1),
            chain_s=np.zeros(1),
            parent=one,
            own=one,
        )

    def _waits_s(self) -> tuple[float, float]:
        """Forward and backward of all stages in the rounds for which an interleaved one waits, at
        least."""
        rounds = (self.case.vpp - 1) / self.case.vpp
        curves = [kind.block.curve for kind in self.kinds]
        forward = self.layers * min(float(curve.forward_layer_s.min()) for curve in curves)
        backward = self.layers * min(float(curve.backward_layer_s.min()) for curve in curves)
        return rounds * forward, rounds * max(backward, self.within.up_s)

    def _add(self, stage: int, kind: int, below: _Labels) -> _Labels:
        """Put one stage of a kind on top of all partial plans."""
        case = self.case
        parent, own = self._grown(stage, kind, below)
        block, start = self.kinds[kind].block, self.layers - below.layers[parent] - own
        forward, backward = self._times(block, stage, own, start)
        # As in `Program._add`; a message goes to the kind that lies below.
        keep = np.isfinite(backward)
        parent, own, forward, backward = parent[keep], own[keep], forward[keep], backward[keep]
        message = np.where(below.top >= 0, self.links[kind, below.top], 0.0)[parent]
        chain = self._chain(stage, forward, backward, below.down_s[parent] + 2 * message, message)
        taken = (forward + backward) / case.vpp + 2 * message
        chain, down = np.maximum(chain, taken + below.chain_s[parent]), below.down_s[parent] + taken
        if stage == 0:
            chain = chain + self._once_s(forward, backward)
        fresh = _Labels(
            layers=below.layers[parent] + own,
            used=below.used[parent] + (np.arange(len(self.kinds)) == kind),
            top=np.full(len(parent), kind),
            back=below.back[parent]
            | ((below.used[parent, kind] > 0) & (below.top[parent] != kind)),
            down_s=down,
            chain_s=chain,
            parent=parent,
            own=own,
        )
        above_s = (self.layers - fresh.layers) * self.least_s.min() / case.vpp
        return fresh.take(chain + above_s < self.below_s)

    def _grown(self, stage: int, kind: int, below: _Labels) -> tuple[Ints, Ints]:
        """Partial plans that a stage may be put on, and its layers: each number that leaves the
        stages above enough, and not too many."""
        used = below.used + (np.arange(len(self.kinds)) == kind)
        good = (used[:, kind] <= self.caps[kind]) & (used @ self.chips <= self.num_chips)
        left = self.layers - below.layers
        lowest = (
            left if stage == 0 else np.maximum(self.case.vpp, left - self._room_above(stage, used))
        )
        most = np.minimum(
            left - stage * self.case.vpp, min(self.most[kind], self._too_full(kind, stage) - 1)
        )
        # Too many partial plans end the program before they are made.
        counts = np.where(good, np.maximum(0, most - lowest + 1), 0)
        self.rows += int(counts.sum())
        if self.rows >= self.most_rows:
            counts[:] = 0
        return grown(lowest, counts)

    def _room_above(self, stage: int, used: Ints) -> Ints:
        """Layers that so many stages above may have at most, (n,)."""
        # The kinds that may have most layers a stage first.
        free, room = np.full(len(used), stage), np.zeros(len(used), dtype=np.int64)
        for kind in np.argsort(-self.most, kind="stable"):
            taken = np.clip(self.caps[kind] - used[:, kind], 0, free)
            free, room = free - taken, room + taken * self.most[kind]
        return np.where(free > 0, -1, room)  # too few stages are left

    def _too_full(self, kind: int, stage: int) -> int:
        """Layers from which on a stage is fuller than its kind's may be."""
        limit = self.within.params[kind]
        if np.isinf(limit):
            return self.layers + 1
        block = self.kinds[kind].block
        role = role_of(stage, self.case.pp)
        full = [
            Fullness(role=role, layers=count).params(block) for count in range(1, self.layers + 1)
        ]
        return 1 + int(np.searchsorted(full, limit * (1 - SAME)))

    def _chain(
        self, stage: int, forward: Floats, backward: Floats, below: Floats, message: Floats
    ) -> Floats:
        return stage_chain_s(
            self.case,
            stage=stage,
            forward_s=forward,
            backward_s=backward,
            below_s=below,
            to_next_s=message,
            to_last_s=self.message_s if stage else 0.0,
            message_s=self.message_s,
            waits_s=self.waits_s,
        )

    def _once_s(self, forward: Floats, backward: Floats) -> Floats:
        """What a step takes once at least, by the first stage's times: of the kind with most."""
        even = -(-self.layers // self.case.pp)
        found = np.min(
            [
                once_s(kind.block.once[MIDDLE], even, forward, backward, self.case)
                for kind in self.kinds
            ],
            axis=0,
        )
        for kind, full in zip(self.kinds, self.within.fullest, strict=True):
            if full.layers:
                found = np.maximum(
                    found,
                    once_s(kind.block.once[full.role], full.layers, forward, backward, self.case),
                )
        return np.asarray(found + self.case.overhead_s)


def _keys(labels: _Labels) -> Ints:
    """One number for all that partial plans must share to be held against each other."""
    most = (int(each) + 1 for each in labels.used.max(axis=0))
    return np.asarray(
        np.ravel_multi_index(
            (labels.layers, labels.top, labels.back.astype(np.int64), *labels.used.T),
            (int(labels.layers.max()) + 1, int(labels.top.max()) + 1, 2, *most),
        )
    )


MOST_ROWS = 500_000
"""Partial plans of all dynamic programs at most: a sixth of a second."""
MOST_TASKS = 16
"""Divisions of one dynamic program at most."""


def returning_plans(
    around: Sequence[Found],
    problem: MixedProblem,
    grid: Grid,
    score: Score,
    *,
    below: float,
    own_stages: bool = False,
    most_rows: int = MOST_ROWS,
) -> list[Found]:
    """Return plans that score less than `below` with a kind of chip that comes back, of the cuts of
    some plans; with `own_stages` of their stages of each kind too.

    Formula:  of each plan's cuts, one chunk per stage or its own number, and each number of stages
              the best order and split, by `OrderProgram`; where chips in use are paid for, the
              plan's own stages of each kind
    Units:    score.
    Source:   docs/heterogeneous.md, "Kinds that come back".
    Valid:    the closed form; interleaved plans by a bound of it, and where messages stop a stage
              those to the stage above at their least.
    Checked:  tests/search/test_mixed_orders.py
    """
    found, left = list[Found](), most_rows
    for plan in around:
        kinds = _kinds(plan, problem, grid, own_stages=own_stages or score.rates is not None)
        rate = plan.score / plan.step_s
        cases = [plan.case] if own_stages else _cases(plan, kinds, problem, grid)
        for case in cases:
            ceiling_s = min(below / rate, score.most_s * int(grid.gbs[plan.common]))
            program = OrderProgram(
                kinds,
                case,
                layers=problem.site.model.total_layers,
                num_chips=problem.num_gpus,
                below_s=ceiling_s,
                most_rows=min(left, max(1, most_rows // 4)),
            )
            ordered = best_order(program)
            left -= program.rows
            if ordered is None:
                continue
            blocks = ordered.blocks(kinds)
            step_s = value_s(blocks, case, ordered.solved)
            if step_s < ceiling_s:
                cuts = tuple(kinds[kind].cut for kind in ordered.runs)
                found.append(
                    Found(
                        score=step_s * rate,
                        step_s=step_s,
                        common=plan.common,
                        cuts=cuts,
                        blocks=blocks,
                        case=case,
                        solved=ordered.solved,
                    )
                )
    return found


def _kinds(plan: Found, problem: MixedProblem, grid: Grid, *, own_stages: bool) -> tuple[Kind, ...]:
    """Stages of a plan's blocks; as many of each as it has, or as there are chips for."""
    found, stages = [], iter(plan.solved.stages)
    for cut, block in zip(plan.cuts, plan.blocks, strict=True):
        own = [next(stages) for _ in range(block.stages)]
        only = (
            OneWay(way=own[0].way, redone=max(stage.redone for stage in own))
            if "recompute" in problem.request.same
            else None
        )
        cap = block.stages if own_stages else int(grid.options[cut[0]].stages[cut[1]])
        found.append(
            Kind(
                cut=cut,
                block=replace(block, stages=1, layers=problem.site.model.total_layers, only=only),
                cap=cap,
            )
        )
    return tuple(found)


def _cases(plan: Found, kinds: Sequence[Kind], problem: MixedProblem, grid: Grid) -> Iterator[Case]:
    """Depths and chunks that keep the rules of the pipeline; the plan's own depth first."""
    micro, layers, stack = (
        plan.case.num_microbatches,
        problem.site.model.total_layers,
        problem.site.stack,
    )
    most = min(layers, sum(kind.cap for kind in kinds), micro if wants_fill(stack) else layers)
    depths = sorted(range(3, most + 1), key=lambda pp: abs(pp - plan.case.pp))
    for vpp in sorted({plan.case.vpp, *([1] if grid.vpp is None else [])}):
        for pp in depths:
            rounds = pp if wants_whole_rounds(stack) else max(1, micro // pp)
            whole = vpp == 1 or (pp * vpp <= layers and micro >= pp and micro % rounds == 0)
            if whole and (grid.pp is None or pp in grid.pp):
                yield replace(plan.case, pp=pp, vpp=vpp)


def best_order(program: OrderProgram) -> Ordered | None:
    """Return the best order and split of the stages in which a kind comes back; None where none is
    faster than the program asks for.

    What a step takes once goes by the fullest stage of a kind, which is known at the end: as in
    `inner.solve` the problem divides into answers less full and as full.
    """
    kinds, case = program.kinds, program.case
    nothing = Fullness(role=MIDDLE, layers=0)
    parts = Parts(Within(fullest=(nothing,) * len(kinds), params=(np.inf,) * len(kinds)))
    best = None
    while parts and parts.made <= MOST_TASKS:
        bound_s, within = parts.pop()
        if bound_s >= program.below_s * (1 - SAME):
            break
        ordered = program.run(within)
        if ordered is None:
            continue
        value = value_s(ordered.blocks(kinds), case, ordered.solved)
        if value < program.below_s:
            best, program.below_s = ordered, value
        if ordered.solved.bound_s < value * (1 - SAME):
            for part in divided(within, _stages_of(kinds, ordered)):
                parts.add(max(bound_s, ordered.solved.bound_s), part)
    return best


def _stages_of(kinds: Sequence[Kind], ordered: Ordered) -> Iterator[tuple[Block, list[Fullness]]]:
    """Each kind's block with how full its stages are."""
    stages, pp = list(zip(ordered.kinds, ordered.solved.stages, strict=True)), len(ordered.kinds)
    for number, kind in enumerate(kinds):
        yield (
            kind.block,
            [
                Fullness(role=role_of(place, pp), layers=stage.layers)
                for place, (of, stage) in enumerate(stages)
                if of == number
            ],
        )
