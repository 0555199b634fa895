"""The inner problem, solved exactly: the dynamic program, divided by what it does not know before
the end."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.search.mixed.blocks import Block, Case, Solved, value_s
from meshwright.search.mixed.curves import MIDDLE
from meshwright.search.mixed.program import SAME, Fullness, Program, Within
from meshwright.search.mixed.stages import role_of

__all__ = ["solve"]

MOST_TASKS = 64
"""Divisions of one inner problem at most."""
CLOSE = 1e-10
"""Relative difference below which all stages' backwards are taken for the same."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class _Task:
    """A part of the assignments, and what none of it undercuts."""

    bound_s: float
    number: int
    within: Within = field(compare=False)


def solve(blocks: Sequence[Block], case: Case, *, below_s: float = np.inf) -> Solved | None:
    """Return the assignment that the closed form gives least; None where none fits or none is below
    `below_s`.

    What a step takes once goes by the fullest stage, and interleaved stages wait for the backwards
    of all; the dynamic program knows neither before the end. So it is solved for the least that
    both can be; where its answer's are more, the answers divide into those with less and those with
    as much.
    """
    program = Program(tuple(blocks), case, below_s)
    start = tuple(
        Fullness(role=MIDDLE, layers=-(-block.layers // block.stages)) for block in blocks
    )
    queue = [
        _Task(bound_s=0.0, number=0, within=Within(fullest=start, params=(np.inf,) * len(blocks)))
    ]
    best: tuple[float, Solved] | None = None
    open_s, number = np.inf, 0
    while queue and number < MOST_TASKS:
        task = heapq.heappop(queue)
        if best is not None and task.bound_s >= best[0] * (1 - SAME):
            break
        solved = program.run(task.within)
        if solved is None:
            continue
        value = value_s(blocks, case, solved)
        if best is None or value < best[0]:
            best = value, solved
            program.below_s = min(below_s, value)
        if solved.bound_s < value * (1 - SAME):
            parts = _divided(blocks, solved, task.within) or _divided_by_waits(
                solved, task.within, case
            )
            for part in parts:
                number += 1
                heapq.heappush(
                    queue,
                    _Task(bound_s=max(task.bound_s, solved.bound_s), number=number, within=part),
                )
            if not parts:  # messages that stretch the steady state by the quickest stage
                open_s = min(open_s, solved.bound_s)
    if best is None:
        return None
    bound = min([best[0], open_s, *(task.bound_s for task in queue)])
    return replace(best[1], bound_s=bound)


def _divided(blocks: Sequence[Block], solved: Solved, within: Within) -> tuple[Within, ...]:
    """Divide by the fullest stage of a block that is fuller than was reckoned: less full, and as
    full."""
    for i, (block, own) in enumerate(_stages_of(blocks, solved)):
        fullest = max(own, key=lambda each: each.params(block))
        reached = fullest.params(block)
        if reached > within.fullest[i].params(block) * (1 + SAME):
            more = (*within.fullest[:i], fullest, *within.fullest[i + 1 :])
            less = (*within.params[:i], reached, *within.params[i + 1 :])
            return replace(within, params=less), replace(within, fullest=more)
    return ()


def _stages_of(blocks: Sequence[Block], solved: Solved) -> Iterator[tuple[Block, list[Fullness]]]:
    """Each block with how full its stages are."""
    start, last = 0, len(solved.stages) - 1
    for block in blocks:
        numbers = range(start, start + block.stages)
        yield (
            block,
            [
                Fullness(
                    role=role_of(is_first=s == 0, is_last=s == last), layers=solved.stages[s].layers
                )
                for s in numbers
            ],
        )
        start += block.stages


def _divided_by_waits(solved: Solved, within: Within, case: Case) -> tuple[Within, ...]:
    """Divide by the backwards of all stages, for which interleaved ones wait: less, and as much."""
    reached = sum(stage.backward_s for stage in solved.stages) * (1 - CLOSE)
    if case.vpp == 1 or reached <= within.up_s * (1 + CLOSE):
        return ()
    return replace(within, most_up_s=reached), replace(within, up_s=reached)
