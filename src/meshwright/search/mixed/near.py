"""Interleaved plans that the closed form takes for nearly as good as the best, split and simulated
together.

The closed form knows how long stages take, not how their chunks wait for each other in a round; so
the best of a few hundred plans by simulation is often none of the best few by the closed form.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import islice, permutations, product

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.schedules import Pipeline
from meshwright.cost.simulate import steady_steps_s
from meshwright.cost.stages import Floats
from meshwright.search.mixed.blocks import (
    Block,
    Case,
    Chosen,
    Solved,
    chosen,
    links_of,
    own_message_s,
    rest_s,
    table_of,
)
from meshwright.search.mixed.boxes import Boxes
from meshwright.search.mixed.curves import role_of
from meshwright.search.mixed.grid import Grid, Options
from meshwright.search.mixed.reprice import Found

__all__ = [
    "evenly_split",
    "expected_s",
    "has_unlike_batches",
    "recomputes_unlike",
    "restaged",
    "sibling_plans",
    "unlike_plans",
    "with_unlike_batches",
]

Ints = NDArray[np.int64]
SHIFT = 3
"""Layers by which a pool's share is moved at most."""
MOST_REORDERED = 3
"""Pools of which all orders are tried."""


def sibling_plans(best: Boxes, chunks: Sequence[int]) -> Boxes:
    """Return one plan (a row) with its pools in every order, a few layers moved between them, and
    every number of chunks."""
    count = int((best.ids[0] >= 0).sum())
    orders = list(permutations(range(count))) if count <= MOST_REORDERED else [tuple(range(count))]
    span = SHIFT if count <= MOST_REORDERED else 1
    moved = [
        (*shifts, -sum(shifts)) for shifts in product(range(-span, span + 1), repeat=count - 1)
    ]
    rows = [
        (order, shifts, vpp)
        for order in orders
        for shifts in moved
        for vpp in chunks
        if abs(shifts[-1]) <= span
    ]
    absent = [*range(count, best.ids.shape[1])]
    places = np.array([[*order, *absent] for order, _, _ in rows])
    layers = best.layers_from[0] + np.array(
        [[*shifts, *([0] * len(absent))] for _, shifts, _ in rows]
    )
    layers, stages = np.take_along_axis(layers, places, axis=1), best.stages_from[0][places]
    return Boxes(
        ids=best.ids[0][places],
        stages_from=stages,
        stages_to=stages,
        layers_from=layers,
        layers_to=layers,
        num_microbatches=np.repeat(best.num_microbatches, len(rows)),
        vpp=np.array([vpp for _, _, vpp in rows]),
        bound_s=np.zeros(len(rows)),
    )


def restaged(plan: Boxes, caps: Ints, chunks: Sequence[int]) -> Boxes:
    """Return one plan (a row) with a stage or two more or fewer of each pool, to so many at most,
    (K,), its layers as they were, and every number of chunks."""
    present = plan.ids[0] >= 0
    span = [range(-2, 3) if here else range(1) for here in present[:MOST_REORDERED]]
    span += [range(1)] * (len(present) - len(span))
    stages = plan.stages_from[0] + np.array(list(product(*span)), dtype=np.int64)
    good = (stages >= present) & (stages <= np.minimum(caps, plan.layers_from[0]))
    stages = np.repeat(stages[good.all(axis=1)], len(chunks), axis=0)
    many = plan.take(np.zeros(len(stages), dtype=np.int64))
    vpp = np.tile(np.array(chunks), len(stages) // len(chunks))
    return replace(many, stages_from=stages, stages_to=stages, vpp=vpp)


def unlike_plans(plans: Boxes) -> Boxes:
    """Return the first of the plans that share their cuts, their order and their chunks."""
    keys = np.concatenate([plans.ids, plans.vpp[:, None]], axis=1)
    return plans.take(np.sort(np.unique(keys, axis=0, return_index=True)[1]))


MOST_OPERATIONS = 40_000
"""Operations of the shapes that are simulated, at most, in groups of micro batches until they are
steady: a tenth of a second."""
GROUPS = 8
"""Groups of micro batches, of as many as there are stages, that a simulation begins with."""


def evenly_split(blocks: Sequence[Block], case: Case) -> Solved | None:
    """Give each block's layers one by one to the stage that is quickest with one more; None where
    they do not fit.

    Its bound is not known and stands as 0.
    """
    stages: list[Chosen] = []
    most = sum(block.layers for block in blocks)
    for block in blocks:
        start = len(stages)
        tables = [
            table_of(block, stage=start + i, case=case, most=most) for i in range(block.stages)
        ]
        times = [table.forward_s + table.backward_s for table in tables]
        own = _counts(times, block.layers, least=case.vpp, even=case.even)
        if own is None:
            return None
        stages += [chosen(table, n - 1, n) for n, table in zip(own, tables, strict=True)]
    return Solved(stages=tuple(stages), bound_s=0.0)


def recomputes_unlike(blocks: Sequence[Block], solved: Solved) -> bool:
    """Return whether stages of a block recompute in unlike ways."""
    stages = iter(solved.stages)
    return any(
        len({(stage.way, stage.redone) for stage in islice(stages, block.stages)}) > 1
        for block in blocks
    )


def _counts(times: Sequence[Floats], layers: int, *, least: int, even: bool) -> list[int] | None:
    """Layers of each stage by what stages take with 1, 2, ... layers."""
    if even:
        each, rest = divmod(layers, len(times))
        own = [each] * len(times)
        return None if rest or not np.isfinite([taken[each - 1] for taken in times]).all() else own
    # A heap of what each stage takes with one layer more; the quickest gets the next layer.
    own = [least] * len(times)
    queue = (
        [(float(taken[least]), i) for i, taken in enumerate(times)]
        if layers > least * len(times)
        else []
    )
    heapq.heapify(queue)
    for _ in range(layers - least * len(times)):
        i = queue[0][1]
        own[i] += 1
        heapq.heapreplace(queue, (float(times[i][own[i]]) if own[i] < len(times[i]) else np.inf, i))
    return (
        own
        if np.isfinite([taken[n - 1] for taken, n in zip(times, own, strict=True)]).all()
        else None
    )


def expected_s(plans: Sequence[Found]) -> Floats:
    """Return a step's seconds of each interleaved plan as the simulation has it, (N,); infinite
    beyond MOST_OPERATIONS, the first first.

    Formula:  the pipeline by simulation of its chunks, and what a step takes once; chunks share
              their stage's layers as evenly as can be
    Units:    seconds.
    Source:   `cost/simulate.py`.
    Valid:    layers of the model's first segment count as those of its second.
    Checked:  tests/search/test_mixed_near.py
    """
    found, left = np.full(len(plans), np.inf), MOST_OPERATIONS
    shapes: dict[tuple[int, int, int], list[int]] = {}
    # Plans of one shape run the same operations, so that one simulation serves all of them.
    for number, plan in enumerate(plans):
        shapes.setdefault(
            (len(plan.solved.stages), plan.case.vpp, plan.case.num_microbatches), []
        ).append(number)
    for (pp, vpp, micro), numbers in shapes.items():
        operations = 2 * pp * vpp * min(micro, 2 * GROUPS * pp)
        if operations > left:
            continue
        left -= operations
        pipelines_s = _steps_s([plans[number] for number in numbers])
        found[numbers] = [
            float(seconds) + rest_s(plans[number].blocks, plans[number].case, plans[number].solved)
            for number, seconds in zip(numbers, pipelines_s, strict=True)
        ]
    return found


def _steps_s(plans: Sequence[Found]) -> Floats:
    """Pipelines of one shape, simulated, (N,)."""
    case, pp = plans[0].case, len(plans[0].solved.stages)
    times = [_chunk_times(plan) for plan in plans]
    nothing = [0.0] * (pp * case.vpp)
    shape = Pipeline(
        schedule="interleaved",
        pp=pp,
        vpp=case.vpp,
        num_microbatches=case.num_microbatches,
        forward_s=nothing,
        backward_s=nothing,
        group=case.num_microbatches // max(1, case.num_microbatches // pp),
    )
    links = np.array([[*links_of(plan.blocks), _way_back_s(plan.blocks, pp)] for plan in plans])
    forward, backward = (np.array([each[side].ravel() for each in times]) for side in (0, 1))
    return steady_steps_s(shape, forward_s=forward, backward_s=backward, links_s=links)


def _chunk_times(plan: Found) -> Floats:
    """Forward and backward of each chunk, (2, vpp, pp)."""
    stages, vpp = plan.solved.stages, plan.case.vpp
    place = [block for block in plan.blocks for _ in range(block.stages)]
    last = len(place) - 1
    layers = np.array([stage.layers for stage in stages])
    chunks = layers // vpp + (np.arange(vpp)[:, None] < layers % vpp)
    ends = np.zeros((2, vpp, len(place)))
    # The first stage's first chunk has the embedding, the last one's last the head; the rest of a
    # stage's time is its chunks' by their layers.
    for number, at in ((0, 0), (last, vpp - 1)):
        curve, role = place[number].curve, role_of(number, last + 1)
        ends[:, at, number] = (
            curve.forward_base_s[role],
            curve.backward_base_s[stages[number].way, role],
        )
    whole = np.array(
        [[stage.forward_s for stage in stages], [stage.backward_s for stage in stages]]
    )
    return np.asarray(
        np.maximum(0.0, (whole - ends.sum(axis=1))[:, None] * (chunks / layers) + ends)
    )


def _way_back_s(blocks: Sequence[Block], pp: int) -> float:
    """One message from the last stage to the first."""
    if len(blocks) > 1:
        return max(blocks[0].curve.cross_message_s, blocks[-1].curve.cross_message_s)
    return own_message_s(blocks[0], pp)


def with_unlike_batches(grid: Grid, around: Collection[int]) -> Grid:
    """Return the grid in which options share everything but dp and mbs, with dp * mbs in common, as
    those numbered `around` have it."""
    own = grid.commons
    # What stays in common is one number, as dp * mbs; dp and mbs are each option's own.
    keys = np.stack([own.gbs, own.dp * own.mbs, own.cp, own.ep, own.etp, own.sharding], axis=1)
    wanted, first = np.unique(keys[sorted(around)], axis=0), []
    merged = np.full(len(own), -1)
    for number, key in enumerate(wanted):
        rows = np.flatnonzero((keys == key).all(axis=1))
        merged[rows] = number
        first.append(int(rows[0]))
    options = []
    for each in grid.options:
        keep = merged[each.common] >= 0
        options.append(
            Options(
                common=merged[each.common][keep],
                layouts=each.layouts.take(keep),
                stages=each.stages[keep],
            )
        )
    at = np.array(first, dtype=np.int64)
    return replace(
        grid,
        gbs=grid.gbs[at],
        num_microbatches=grid.num_microbatches[at],
        options=tuple(options),
        commons=own.take(at),
    )


def has_unlike_batches(found: Found, grid: Grid) -> bool:
    """Whether a plan's kinds of chips differ in dp."""
    return len({int(grid.options[pool].layouts.dp[option]) for pool, option in found.cuts}) > 1
