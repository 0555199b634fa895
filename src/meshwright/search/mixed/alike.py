"""The inner problem where the stages of a block recompute alike: branch and bound over what they
share."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice

import numpy as np

from meshwright.search.mixed.blocks import Block, Case, Chosen, Solved, value_s
from meshwright.search.mixed.inner import solve
from meshwright.search.mixed.stages import OneWay

__all__ = ["solve_alike"]

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
