"""The inner problem, solved exactly: the dynamic program, divided by what it can't know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from meshwright.search.mixed.blocks import Block, Case, Solved, value_s
from meshwright.search.mixed.curves import MIDDLE, OneWay, role_of
from meshwright.search.mixed.program import SAME, Fullness, Parts, Program, Within, divided

__all__ = ["solve", "solve_alike"]

MOST_TASKS = 64
"""Divisions of one inner problem at most."""
CLOSE = 1e-10
"""Relative difference below which all stages' backwards are taken for the same."""


def solve(blocks: Sequence[Block], case: Case, *, below_s: float = np.inf) -> Solved | None:
    """Return the assignment that the closed form gives least; None where none fits or none is below
    `below_s`.

    What a step takes once goes by the fullest stage, and interleaved stages wait for the backwards
    of all; the dynamic program knows neither before the end. So it is solved for the least that
    both can be; where its answer's are more, the answers divide into those with less and those with
    as much.
    """
    program = Program(tuple(blocks), case, below_s)
    # Stages as full as in an even split are the least that the fullest can be.
    start = tuple(
        Fullness(role=MIDDLE, layers=-(-block.layers // block.stages)) for block in blocks
    )
    parts = Parts(Within(fullest=start, params=(np.inf,) * len(blocks)))
    best: tuple[float, Solved] | None = None
    open_s = np.inf
    while parts and parts.made <= MOST_TASKS:
        # The part that may hold the least goes first: once the best is below its bound, it is below
        # that of all others, and proven.
        bound_s, within = parts.pop()
        if best is not None and bound_s >= best[0] * (1 - SAME):
            break
        solved = program.run(within)
        if solved is None:
            continue
        value = value_s(blocks, case, solved)
        if best is None or value < best[0]:
            best = value, solved
            program.below_s = min(below_s, value)
        # The program's answer is a bound, reckoned with the least exchange and the least waits.
        # What it takes in truth is more where its stages are fuller, or its backwards longer.
        if solved.bound_s < value * (1 - SAME):
            found = divided(within, _stages_of(blocks, solved)) or _divided_by_waits(
                solved, within, case
            )
            for part in found:
                parts.add(max(bound_s, solved.bound_s), part)
            if not found:  # messages that stretch the steady state by the quickest stage
                open_s = min(open_s, solved.bound_s)
    if best is None:
        return None
    return replace(best[1], bound_s=min(best[0], open_s, parts.least_s))


def _stages_of(blocks: Sequence[Block], solved: Solved) -> Iterator[tuple[Block, list[Fullness]]]:
    """Each block with how full its stages are."""
    stages, pp = enumerate(solved.stages), len(solved.stages)
    for block in blocks:
        own = islice(stages, block.stages)
        yield block, [Fullness(role=role_of(s, pp), layers=stage.layers) for s, stage in own]


def _divided_by_waits(solved: Solved, within: Within, case: Case) -> tuple[Within, ...]:
    """Divide by the backwards of all stages, for which interleaved ones wait: less, and as much."""
    reached = sum(stage.backward_s for stage in solved.stages) * (1 - CLOSE)
    if case.vpp == 1 or reached <= within.up_s * (1 + CLOSE):
        return ()
    return replace(within, most_up_s=reached), replace(within, up_s=reached)


MOST_PROBLEMS = 512
"""Inner problems solved for one at most; beyond, the bound says what is left open."""


def solve_alike(blocks: Sequence[Block], case: Case, *, below_s: float = np.inf) -> Solved | None:
    """Return the best assignment in which all stages of a block recompute in one way; None where
    none fits or none is below `below_s`.

    Left free, stages take no longer, so their answer bounds; a block whose stages differ in it is
    divided into one problem per way.
    """
    parts: Parts[tuple[Solved, tuple[Block, ...]]] = Parts()
    best, most, popped = None, below_s, 0

    def consider(blocks: tuple[Block, ...]) -> None:
        solved = solve(blocks, case, below_s=most)
        if solved is not None and solved.bound_s < most:
            parts.add(solved.bound_s, (solved, blocks))

    consider(tuple(blocks))
    open_s = np.inf
    while parts:
        bound_s, (solved, own) = parts.pop()
        if bound_s >= most * (1 - SAME) or parts.made + popped > MOST_PROBLEMS:
            open_s = bound_s
            break
        popped += 1
        unlike = _first_unlike(own, solved)
        # An answer that is alike by itself is the best of its part, as the part allows more.
        if unlike is None:
            value = value_s(own, case, solved)
            open_s = min(open_s, bound_s)
            if value < most:
                best, most = solved, value
            continue
        for way in _ways(own[unlike], case):
            consider((*own[:unlike], replace(own[unlike], only=way), *own[unlike + 1 :]))
    if best is None:
        return None
    return replace(best, bound_s=min(most, open_s, parts.least_s))


def _first_unlike(blocks: Sequence[Block], solved: Solved) -> int | None:
    """Number of the first block whose stages recompute in unlike ways, though they may not."""
    stages = iter(solved.stages)
    for number, block in enumerate(blocks):
        ways = {(stage.way, stage.redone) for stage in islice(stages, block.stages)}
        if block.only is None and len(ways) > 1:
            return number
    return None


def _ways(block: Block, case: Case) -> Iterator[OneWay]:
    """Every way, the block's last one for each number of layers that a chunk may have."""
    plain = len(block.curve.backward_layer_s) - block.curve.by_block
    yield from (OneWay(way=way) for way in range(plain))
    if block.curve.by_block:
        longest = -(-(block.layers - (block.stages - 1) * case.vpp) // case.vpp)
        yield from (OneWay(way=plain, redone=number) for number in range(1, longest))
