"""A second phase: orders of the stages in which a kind of chip comes back, around the best plans in
which each kind has one run.

Early stages hold more micro batches than late ones, so where memory binds, stages with more of it
may do best at both ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshwright.search.mixed.blocks import Block, Case, value_s
from meshwright.search.mixed.curves import MIDDLE, OneWay, role_of
from meshwright.search.mixed.grid import Grid
from meshwright.search.mixed.orders import Kind, Ordered, OrderProgram
from meshwright.search.mixed.problem import MixedProblem, Score
from meshwright.search.mixed.program import SAME, Fullness, Parts, Within, divided
from meshwright.search.mixed.reprice import Found
from meshwright.search.rules.pipeline import wants_fill, wants_whole_rounds

__all__ = ["best_order", "returning_plans"]

MOST_ROWS = 500_000
"""Partial plans of all dynamic programs at most: a sixth of a second."""
MOST_TASKS = 16
"""Divisions of one dynamic program at most."""


def returning_plans(
    around: Sequence[Found], problem: MixedProblem, grid: Grid, score: Score, *, below: float
) -> list[Found]:
    """Return plans that score less than `below` with a kind of chip that comes back, of the cuts of
    some plans.

    Formula:  of each plan's cuts, one chunk per stage or its own number, and each number of stages
              the best order and split, by `OrderProgram`; where chips in use are paid for, the
              plan's own stages of each kind
    Units:    score.
    Source:   docs/heterogeneous.md, "Kinds that come back".
    Valid:    the closed form; interleaved plans by a bound of it, and where messages stop a stage
              those to the stage above at their least.
    Checked:  tests/search/test_mixed_orders.py
    """
    found, left = list[Found](), MOST_ROWS
    for plan in around:
        kinds = _kinds(plan, problem, grid, score)
        rate = plan.score / plan.step_s
        for case in _cases(plan, kinds, problem, grid):
            ceiling_s = min(below / rate, score.most_s * int(grid.gbs[plan.common]))
            program = OrderProgram(
                kinds,
                case,
                layers=problem.site.model.total_layers,
                num_chips=problem.num_gpus,
                below_s=ceiling_s,
                most_rows=min(left, MOST_ROWS // 4),
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


def _kinds(plan: Found, problem: MixedProblem, grid: Grid, score: Score) -> tuple[Kind, ...]:
    """Stages of a plan's blocks; as many of each as there are chips for, or where chips are paid
    for as it has."""
    found, stages = [], iter(plan.solved.stages)
    for cut, block in zip(plan.cuts, plan.blocks, strict=True):
        own = [next(stages) for _ in range(block.stages)]
        only = (
            OneWay(way=own[0].way, redone=max(stage.redone for stage in own))
            if "recompute" in problem.request.same
            else None
        )
        cap = block.stages if score.rates is not None else int(grid.options[cut[0]].stages[cut[1]])
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
