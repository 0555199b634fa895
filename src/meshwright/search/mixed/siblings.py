"""Plans beside the best: the closed form of uneven interleaved stages is less sure, and the
simulation tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from meshwright.search.mixed.boxes import Boxes

__all__ = ["sibling_plans", "unlike_plans"]

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


def unlike_plans(plans: Boxes) -> Boxes:
    """Return the first of the plans that share their cuts, their order and their chunks."""
    keys = np.concatenate([plans.ids, plans.vpp[:, None]], axis=1)
    return plans.take(np.sort(np.unique(keys, axis=0, return_index=True)[1]))
