"""How slow a stage of a box may be, and whether stages that quick hold all layers together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.once import exposed_exchange_s
from meshwright.cost.stages import Floats
from meshwright.search.mixed.curves import MIDDLE

if TYPE_CHECKING:
    from meshwright.search.mixed.boxes import Boxes, Cuts, Limits

__all__ = ["deepest", "hold_all_layers", "slowest_stage_s"]

Ints = NDArray[np.int64]


def deepest(boxes: Boxes, limits: Limits) -> Ints:
    """Return the stages that a plan of a row has at most, (R,).

    Each has a layer a chunk. Interleaved pipelines, and all of software that wants them filled,
    have no more stages than micro batches.
    """
    most: Ints = np.minimum(boxes.stages_to.sum(axis=1), limits.layers // boxes.vpp)
    filled = (boxes.vpp > 1) | limits.filled
    most = np.where(filled, np.minimum(most, boxes.num_microbatches), most)
    return most if limits.pp is None else np.minimum(most, max(limits.pp))


def slowest_stage_s(boxes: Boxes, cuts: Cuts, limits: Limits, ceiling_s: Floats) -> Floats:
    """Return how long a stage may take, nothing recomputed, for a step below the ceiling, (R,).

    Formula:  with F, B and T the least forward, backward and both of all layers, M micro batches,
              D stages at most, and t = f + b of the stage: a step takes M t at least; with one
              chunk a stage T + (M - 1) b + (M - D) f and, with more micro batches than stages,
              2 T + (M - 1 - D) t; with v chunks F + M b + (B - b) / v; and all of these with the
              passes exchanged
    Units:    seconds.
    Source:   docs/heterogeneous.md, "How slow a stage may be"; `chain_s` and `interleaved_chain_s`
              of `cost/pipeline.py`.
    Valid:    boxes of which every plan has `layers_from` layers on each block at least.
    Checked:  tests/search/test_mixed_bounds.py::test_no_stage_of_a_plan_is_slower_than_it_may_be
    """
    present = boxes.ids >= 0
    forward, backward = cuts.forward_s[boxes.ids], cuts.backward_s[boxes.ids]
    micro, vpp = (each.astype(np.float64) for each in (boxes.num_microbatches, boxes.vpp))
    rest = np.maximum(0, limits.layers - boxes.layers_from.sum(axis=1))
    works, shares = list[Floats](), list[Floats]()
    with np.errstate(divide="ignore", invalid="ignore"):  # of absent pools
        for own in (forward, backward):
            quickest = np.where(present, own, np.inf).min(axis=1)
            works.append((boxes.layers_from * own).sum(axis=1) + rest * quickest)
            shares.append(np.where(present, own / (forward + backward), np.inf).min(axis=1))
        depth = deepest(boxes, limits)
        budget = ceiling_s - limits.overhead_s - _once_s(boxes, cuts, limits, ceiling_s, depth)
        total, alone = sum(works), np.maximum(0.0, micro - depth)
        most = budget / micro
        for one, two in ((0, 1), (1, 0)):
            (work, share), (other, far) = (works[one], shares[one]), (works[two], shares[two])
            once = (budget - total) / ((micro - 1) * share + alone * far)
            chunked = (budget - other - work / vpp) / ((micro - 1 / vpp) * share)
            bound = np.where(vpp > 1, chunked, once)
            most = np.where(np.isnan(bound), most, np.minimum(most, bound))
        spare = micro - 1 - depth
        twice = np.where(spare > 0, (budget - 2 * total) / spare, np.inf)
        return np.asarray(np.where((vpp > 1) | np.isnan(twice), most, np.minimum(most, twice)))


def _once_s(boxes: Boxes, cuts: Cuts, limits: Limits, ceiling_s: Floats, depth: Ints) -> Floats:
    """What is done once at least, (R,): by the fullest stage of any pool, behind no more than a
    micro batch's share of the whole step and what a first stage takes beyond its layers."""
    ids = boxes.ids
    present = ids >= 0
    even = -(-boxes.layers_from // np.maximum(1, boxes.stages_to))
    full = np.minimum(np.maximum(boxes.vpp[:, None], even), limits.layers) * present
    share = (ceiling_s / boxes.num_microbatches)[:, None]
    found = np.where(present, cuts.optimizer_s[ids, MIDDLE, full], 0.0)
    for exchange, layer, first in (
        (cuts.reduce_s, cuts.most_backward_s, cuts.first_backward_s),
        (cuts.gather_s, cuts.most_forward_s, cuts.first_forward_s),
    ):
        # Of the first stage, whose quickest layers may be quicker than those of this pass.
        longest = np.maximum(1.0, layer[ids] / cuts.layer_s[ids])
        beyond = first[ids] + cuts.head_s[ids]
        hidden = limits.dp_overlap * np.where(present, share * longest + beyond, 0.0).max(
            axis=1, keepdims=True
        )
        exposed = exposed_exchange_s(
            exchange[ids, MIDDLE, full],
            np.where(np.isfinite(hidden), hidden, 0.0),
            chunks=boxes.vpp[:, None],
            pp=depth[:, None],
        )
        found = found + np.where(present & np.isfinite(hidden), exposed, 0.0)
    return np.asarray(found.max(axis=1))


def hold_all_layers(
    stages_from: Ints, stages_to: Ints, most: Ints, *, depth: Ints, layers: int
) -> NDArray[np.bool_]:
    """Return whether stages of `most` layers each (R, K), no more than `depth` (R,) in all, hold
    the model's: those of the pools whose stages hold most come first."""
    order = np.argsort(-most, axis=1, kind="stable")
    least, upto, each = (
        np.take_along_axis(array, order, axis=1) for array in (stages_from, stages_to, most)
    )
    left = depth - least.sum(axis=1)
    more = np.maximum(0, upto - least)
    before = more.cumsum(axis=1) - more
    taken = np.clip(left[:, None] - before, 0, more)
    return np.asarray((left >= 0) & (((least + taken) * each).sum(axis=1) >= layers))
