"""The inner problem, solved exactly: the dynamic program, divided by what it does not know before
the end."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

import numpy as np

from meshwright.search.mixed.blocks import Block, Case, Chosen, Solved, value_s
from meshwright.search.mixed.curves import MIDDLE, OneWay, role_of
from meshwright.search.mixed.program import SAME, Fullness, Program, Within

__all__ = [
    "solve",
    "solve_alike",
]

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


MOST_PROBLEMS = 512
"""Inner problems solved for one at most; beyond, the bound says what is left open."""
_SAME = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class _Open:
    bound_s: float
    number: int
    solved: Solved = field(compare=False)
    blocks: tuple[Block, ...] = field(compare=False)


def solve_alike(blocks: Sequence[Block], case: Case, *, below_s: float = np.inf) -> Solved | None:
    """Return the best assignment in which all stages of a block recompute in one way; None where
    none fits or none is below `below_s`.

    Left free, stages take no longer, so their answer bounds; a block whose stages differ in it is
    divided into one problem per way.
    """
    numbers = count()
    queue: list[_Open] = []
    best, most = None, below_s

    def consider(parts: tuple[Block, ...]) -> None:
        solved = solve(parts, case, below_s=most)
        if solved is not None and solved.bound_s < most:
            heapq.heappush(
                queue,
                _Open(bound_s=solved.bound_s, number=next(numbers), solved=solved, blocks=parts),
            )

    consider(tuple(blocks))
    open_s = np.inf
    while queue:
        task = heapq.heappop(queue)
        if task.bound_s >= most * (1 - _SAME) or next(numbers) > MOST_PROBLEMS:
            open_s = task.bound_s
            break
        stages = iter(task.solved.stages)
        own = [tuple(islice(stages, block.stages)) for block in task.blocks]
        unlike = next(
            (
                i
                for i, (block, part) in enumerate(zip(task.blocks, own, strict=True))
                if not _are_alike(block, part)
            ),
            None,
        )
        if unlike is None:
            value = value_s(task.blocks, case, task.solved)
            open_s = min(open_s, task.bound_s)
            if value < most:
                best, most = task.solved, value
            continue
        for way in _ways(task.blocks[unlike], case):
            consider(
                (
                    *task.blocks[:unlike],
                    replace(task.blocks[unlike], only=way),
                    *task.blocks[unlike + 1 :],
                )
            )
    if best is None:
        return None
    return replace(best, bound_s=min([most, open_s, *(task.bound_s for task in queue)]))


def _are_alike(block: Block, stages: tuple[Chosen, ...]) -> bool:
    return block.only is not None or len({(stage.way, stage.redone) for stage in stages}) == 1


def _ways(block: Block, case: Case) -> Iterator[OneWay]:
    """Every way, the block's last one for each number of layers that a chunk may have."""
    plain = len(block.curve.backward_layer_s) - block.curve.by_block
    yield from (OneWay(way=way) for way in range(plain))
    if block.curve.by_block:
        longest = -(-(block.layers - (block.stages - 1) * case.vpp) // case.vpp)
        yield from (OneWay(way=plain, redone=number) for number in range(1, longest))
