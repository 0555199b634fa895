"""What fully sharded weights exchange per layer, and how much of it compute hides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.collectives import Group, all_gather_s, beside_compute_s, group_of
from meshwright.cost.ends import Ends, padded_vocab
from meshwright.cost.host import weights_from_host_s
from meshwright.cost.kernels import HostPass, host_sharded_s
from meshwright.cost.once import gathered_bytes, shard_copies_s, tensor_copies_s
from meshwright.cost.stages import Floats
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import SHARDINGS, Layouts
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

__all__ = ["fsdp_layer_s", "with_gathers"]

_WAYS: tuple[HostPass, HostPass] = ("", "_backward")


@makes("fsdp_comm")
def fsdp_layer_s(
    layouts: Layouts,
    params: tuple[Floats, Floats],
    forward_s: Floats,
    backward_s: Floats,
    *,
    pool: Pool,
    work: Workload,
    stack: Stack,
) -> tuple[Floats, Floats]:
    """Exposed parameter gathers and gradient scatters of one layer and micro batch, (N,) each; 0
    below zero2.

    Formula:  forward: all-gather of the layer's weights; backward: that again and a reduce-scatter
              of its gradients (zero2: the scatter alone); each beside overlap * compute, which it
              slows, with copies where the stack shards by tensor; weights beside adapters have no
              gradients; where FSDP runs under a pipeline, one gather in the first forward and one
              scatter in the last backward serve all micro batches; where the reduction is deferred,
              one scatter; weights that wait on the host come before each gather, and gradients
              leave behind each scatter (`weights_from_host_s`)
    Units:    seconds, (N,).
    Source:   PyTorch FSDP (arXiv:2304.11277); torch.distributed.pipelining reshards and reduces
              with the last micro batch only.
    Valid:    `params` of one layer and rank, dense and expert, before they are sharded.
    Checked:  tests/cost/test_measured.py::test_copies_around_gathers_and_scatters
    """
    zero2 = layouts.sharding == SHARDINGS.index("zero2")
    zero3 = layouts.sharding >= SHARDINGS.index("zero3")
    if not (zero2 | zero3).any():
        return np.zeros(len(layouts)), np.zeros(len(layouts))
    narrow = stack.narrow_linear == "torchao-gathers" and work.precision == "fp8"
    gathered = 1.0 if narrow else gathered_bytes(work.precision)
    # A frozen weight has no gradient to scatter.
    reduced = 0.0 if work.lora_rank else stack.reduce_bytes
    inside = _sharing_groups(layouts, params, pool)
    weights, scatter = (
        np.asarray(
            stack.factors.data
            * (each > 0)
            * sum(all_gather_s(ranks, held * each) for ranks, held in inside)
        )
        for each in (gathered, reduced)
    )
    if layouts.hosts_weights.any():
        own = np.asarray(sum(held / ranks.size for ranks, held in inside))
        weights = weights + weights_from_host_s(layouts, own, _waiting(work, stack), pool=pool)
        scatter = scatter + weights_from_host_s(layouts, own, reduced, pool=pool)
    # Under a pipeline FSDP keeps a stage's weights whole until its last micro batch: a gather per
    # micro batch would be counted M times too often, so each exchange is spread over all of them.
    piped = zero3 & (layouts.pp > 1) & (stack.family == "fsdp")
    rounds = np.where(piped, layouts.num_microbatches, 1)
    forward = np.where(zero3, beside_compute_s(weights, stack.fsdp_overlap * forward_s), 0.0)
    backward = _backward_s(layouts, weights, scatter, stack.fsdp_overlap * backward_s, piped, stack)
    if stack.shards_by_tensor:
        shared = np.asarray(sum(zero3 * (ranks.size > 1) * each for ranks, each in inside))
        chip = pool.node.chip
        copied_out, copied_in = tensor_copies_s(chip, shared, gathered=gathered, reduced=reduced)
        forward, backward = forward + copied_out, backward + copied_out * ~piped + copied_in
    if stack.embedded and pool.node.chip.is_processor:
        gathers, scatters = _processor_copies_s(layouts, params, pool=pool, work=work, stack=stack)
        host = [zero3 * host_sharded_s(pool.node.chip, way) for way in _WAYS]
        forward = forward + zero3 * gathers + host[0]
        backward = backward + zero3 * ~piped * gathers + scatters * (zero2 | zero3) + host[1]
    return forward / rounds, backward / rounds


def _waiting(work: Workload, stack: Stack) -> float:
    """Bytes per weight that come from the host: of the fp32 shard that the optimizer updates, or
    of the halves that are kept beside it.

    Formula:  2 of frozen or half-precision weights, else 4
    Source:   torch's CPUOffloadPolicy copies shards as they are, and casts them on the chip;
              DeepSpeed's runtime/zero/partition_parameters.py keeps halves.
    """
    own = stack.zero3_weights == "master" and stack.master_bytes > 0 and not work.lora_rank
    return 4.0 if own else 2.0


def _backward_s(
    layouts: Layouts,
    weights: Floats,
    scatter: Floats,
    hiding_s: Floats,
    piped: NDArray[np.bool_],
    stack: Stack,
) -> Floats:
    """What gather and scatter of a backward pass take beside `hiding_s` of compute, (N,).

    Formula:  beside_compute_s(gather + scatter, hiding_s), of the scatter alone in zero2 or under a
              pipeline; deferred, but for a pipeline: g + (that - g) / num_microbatches, g the same
              of the gather alone, 0 in zero2
    Units:    seconds per micro batch.
    Source:   PyTorch FSDP (arXiv:2304.11277); deferred: torch's `set_requires_gradient_sync`.
    """
    zero2 = layouts.sharding == SHARDINGS.index("zero2")
    zero3 = layouts.sharding >= SHARDINGS.index("zero3")
    exchange = np.where(
        zero3, np.where(piped, 0.0, weights) + scatter, np.where(zero2, scatter, 0.0)
    )
    backward = beside_compute_s(exchange, hiding_s) * (exchange > 0)
    if not stack.reduction_deferred:
        return backward
    # Only the last micro batch scatters; those before it gather weights alone. What the scatter
    # adds to the last is therefore shared out over all, the gather is not.
    before_last = np.where(zero3, beside_compute_s(weights, hiding_s), 0.0)
    return np.where(
        piped, backward, before_last + (backward - before_last) / layouts.num_microbatches
    )


def _sharing_groups(
    layouts: Layouts, params: tuple[Floats, Floats], pool: Pool
) -> list[tuple[Group, Floats]]:
    """The ranks that share dense weights and those that share experts, with what they share.

    They differ: experts are spread over ep already, so fewer ranks hold copies of one, and further
    apart. One group for both would gather experts from ranks that have others.
    """
    inside = [(group_of(layouts.shard_size, layouts.tp, pool), params[0])]
    if params[1].any():
        inside.append(
            (group_of(layouts.expert_shard_size, layouts.ep * layouts.etp, pool), params[1])
        )
    return inside


def _processor_copies_s(
    layouts: Layouts,
    params: tuple[Floats, Floats],
    *,
    pool: Pool,
    work: Workload,
    stack: Stack,
) -> tuple[Floats, Floats]:
    """Copies into and out of the exchange's buffers, which no processor hides, (N,) each.

    Formula:  shard_copies_s of held * gathered bytes, and of held * reduce_bytes
    Units:    seconds per layer and micro batch.
    Source:   as `shard_copies_s`.
    """
    chip, held = pool.node.chip, params[0] + params[1]
    return (
        shard_copies_s(chip, held * gathered_bytes(work.precision), layouts.shard_size, "gather"),
        shard_copies_s(chip, held * stack.reduce_bytes, layouts.shard_size, "scatter"),
    )


def with_gathers(
    ends: Ends, layouts: Layouts, *, model: ModelSpec, pool: Pool, work: Workload, stack: Stack
) -> Ends:
    """Add what the embedded trainer's zero3 gathers and scatters of embedding and head: one unit,
    or one on either end of a pipeline.

    Formula:  `fsdp_layer_s` of the padded table; without a pipeline embedding and head are one unit
    Units:    seconds, (N,).
    Source:   trainer/optimizer.py, which wraps them so.
    Valid:    the embedded trainer; others as they are.
    Checked:  tests/cost/test_measured.py::test_zero3_gathers_and_scatters_the_ends_too
    """
    if not stack.embedded:
        return ends
    table = (
        padded_vocab(model.vocab, layouts.tp.astype(np.float64), stack.vocab_multiple)
        * model.hidden
        / layouts.tp
    )
    alone = layouts.pp > 1
    units = np.where(alone, table, 0.0), np.where(alone | model.tied, table, 2.0 * table)
    first, last = (
        fsdp_layer_s(
            layouts,
            (held, np.zeros_like(held)),
            forward,
            backward,
            pool=pool,
            work=work,
            stack=stack,
        )
        for held, forward, backward in (
            (units[0], ends.embedding_forward_s, ends.embedding_backward_s),
            (units[1], ends.head_forward_s, ends.head_backward_s),
        )
    )
    return replace(
        ends,
        embedding_forward_s=ends.embedding_forward_s + first[0] * alone,
        embedding_backward_s=ends.embedding_backward_s + first[1] * alone,
        head_forward_s=ends.head_forward_s + last[0],
        head_backward_s=ends.head_backward_s + last[1],
    )
