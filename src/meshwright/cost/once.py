"""What a step takes once: the exchange between replicas, the optimizer, the host's own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.cost._makes import makes
from meshwright.cost.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    beside_compute_s,
    group_of,
    reduce_scatter_s,
)
from meshwright.cost.ends import padded_vocab
from meshwright.cost.host import hosted_update_s, paged_s
from meshwright.cost.kernels import host_sharded_s, host_step_s, own_s, streaming_s
from meshwright.cost.operators import HALF
from meshwright.cost.stages import Floats
from meshwright.cost.states import data_shards
from meshwright.cost.terms import data_term_s
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import SHARDINGS, Layouts
from meshwright.values.models.adapters import trainable_share
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Precision, Workload

__all__ = [
    "data_exchange_s",
    "exchanged_bytes",
    "exposed_exchange_s",
    "gathered_bytes",
    "once_terms_s",
    "optimizer_s",
    "shard_copies_s",
    "tensor_copies_s",
    "tied_exchange_s",
]


def once_terms_s(
    layouts: Layouts,
    dense: Floats,
    expert: Floats,
    forward_s: Floats,
    backward_s: Floats,
    *,
    pool: Pool,
    work: Workload,
    stack: Stack,
    model: ModelSpec,
) -> dict[str, Floats]:
    """Exposed data-parallel exchange, optimizer and overhead, (N,) each: what a step takes once.

    `dense` and `expert` are the parameters of a rank of the fullest stage; `forward_s` and
    `backward_s` one micro batch on the first stage.

    Formula:  what `exposed_exchange_s` leaves of the reduction behind the backward, and of the
              gathering behind the forward pass, and `tied_exchange_s`
    Units:    seconds.
    Source:   overlap as in `software/*/stack.toml`: buckets are reduced while the last micro batch
              works back.
    Valid:    any layout.
    Checked:  tests/cost/test_step.py::test_data_parallel_exchange_hides_behind_the_last_backward
    """
    learning = trainable_share(model, work)
    dense, expert = dense * learning, expert * learning
    layers = np.maximum(model.total_layers / layouts.pp, 1.0)
    units = layers + 1.0 if stack.embedded else 1.0
    scatter, gather = data_exchange_s(
        layouts, dense, expert, pool=pool, stack=stack, precision=work.precision, units=units
    )
    chunks = (
        layouts.vpp if stack.family == "megatron" else np.ones_like(layouts.vpp)
    )  # others exchange a stage at once
    overlap = np.where(_is_after_passes(layouts, stack), 0.0, stack.dp_overlap)
    reduction, gathering = (
        exposed_exchange_s(seconds, overlap * pass_s, chunks=chunks, pp=layouts.pp)
        for seconds, pass_s in ((scatter, backward_s), (gather, forward_s))
    )
    copies: Floats | float = 0.0
    if stack.embedded and pool.node.chip.is_processor:
        copies = _sharding_s(
            layouts, dense + expert, layers, pool=pool, stack=stack, precision=work.precision
        )
    return {
        "dp_comm": data_term_s(
            reduction_s=reduction,
            gathering_s=gathering,
            tied_s=tied_exchange_s(layouts, model, pool=pool, stack=stack),
            copies_s=copies,
        ),
        "optimizer": optimizer_s(layouts, dense, expert, pool=pool, stack=stack),
        "overhead": _overhead_s(layouts, model.total_layers, pool=pool, stack=stack)
        + _compared_s(layouts, dense, model, stack=stack),
    }


def _is_after_passes(layouts: Layouts, stack: Stack) -> NDArray[np.bool_]:
    """Whether gradients are reduced whole after the last backward pass, (N,)."""
    after = stack.zero1_exchange == "after-passes"
    return np.asarray(after & (layouts.sharding == SHARDINGS.index("zero1")))


@makes("dp_comm")
def exposed_exchange_s(
    seconds: Floats,
    hidden_s: Floats,
    *,
    chunks: Floats | NDArray[np.int64],
    pp: Floats | NDArray[np.int64],
) -> Floats:
    """What an exchange adds to a step, of which a stage's pass of one micro batch hides `hidden_s`,
    (N,).

    Formula:  max(0, e - h); in v chunks the larger of (e - h) / v, as nothing follows the last
              chunk, and of e - ((v - 1) pp + 1) h / v, as pp micro batches pass every other chunk
              after it is done; what hides slows compute
    Units:    seconds.
    Source:   Megatron-Core's interleaved schedule (pipeline_parallel/schedules.py: grad_sync_func
              and param_sync_func are called chunk by chunk); `beside_compute_s`.
    Valid:    chunks of equal size.
    Checked:  tests/cost/test_step.py::test_chunks_exchange_behind_each_other
    """
    each = hidden_s / chunks
    alone = np.maximum(seconds / chunks - each, seconds - ((chunks - 1) * pp + 1) * each)
    return beside_compute_s(seconds, seconds - np.maximum(0.0, alone))


def _sharding_s(
    layouts: Layouts,
    held: Floats,
    layers: Floats,
    *,
    pool: Pool,
    stack: Stack,
    precision: Precision,
) -> Floats:
    """What fully_shard takes a processor once a step below zero3: copies, and where ranks share,
    the host's time.

    Formula:  shard_copies_s of held * gathered bytes + shard_copies_s of held * reduce_bytes (not
              in zero2) + layers * (host's forward + backward where ranks share); 0 in zero3
    Units:    seconds per step, (N,).
    Source:   as `shard_copies_s`; the host's time as profiled, `host_sharded_s`.
    """
    chip, kind = pool.node.chip, layouts.sharding
    shared = (kind == SHARDINGS.index("zero1")) | (kind == SHARDINGS.index("zero2"))
    ranks = np.where(shared, layouts.shard_size, 1)
    gather = shard_copies_s(chip, held * gathered_bytes(precision), ranks, "gather")
    scatter = shard_copies_s(chip, held * stack.reduce_bytes, ranks, "scatter")
    host = layers * (host_sharded_s(chip, "") + host_sharded_s(chip, "_backward")) * shared
    each_time = kind == SHARDINGS.index("zero2")  # then scatters are with the micro batches
    return np.where(kind < SHARDINGS.index("zero3"), gather + scatter * ~each_time + host, 0.0)


def shard_copies_s(
    chip: Chip,
    whole_bytes: Floats,
    ranks: Floats | NDArray[np.int64],
    way: Literal["gather", "scatter"],
) -> Floats:
    """Copies in a processor's memory around a gather of weights, or a scatter of gradients, by
    fully_shard.

    Formula:  gather: shards into the sent buffer and whole weights out of the received one, 2 (1 +
              1 / ranks) bytes read and written for each of `whole_bytes`; of one rank one copy, 2.
              scatter: whole gradients into the sent buffer, and shards added up, 2 + 3 / ranks; of
              one rank a copy, a division by one and another copy, 6
    Units:    seconds.
    Source:   torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py and
              _fsdp_param_group.py.
    Valid:    on a GPU other streams do them.
    Checked:  tests/cost/test_measured.py::test_copies_around_gathers_and_scatters
    """
    passes = (
        np.where(ranks > 1, 2.0 * (1.0 + 1.0 / ranks), 2.0)
        if way == "gather"
        else np.where(ranks > 1, 2.0 + 3.0 / ranks, 6.0)
    )
    return streaming_s(chip, whole_bytes * passes)


def tensor_copies_s(
    chip: Chip, params: Floats, *, gathered: float, reduced: float
) -> tuple[Floats, Floats]:
    """Copies on the stream of compute that FSDP2 makes of a layer: weights out of what was
    gathered, gradients into what is scattered.

    Formula:  2 bytes moved per byte gathered; gradients read in half precision and written as they
              are reduced, where they are
    Units:    seconds.
    Source:   torch 2.13, torch/distributed/fsdp/_fully_shard: wait_for_unshard in
              _fsdp_param_group.py (foreach_all_gather_copy_out), foreach_reduce in
              _fsdp_collectives.py (foreach_reduce_scatter_copy_in), both before another stream is
              entered.
    Valid:    GPUs; a processor's copies are those of `shard_copies_s`.
    Checked:  tests/cost/test_step.py::test_shards_by_tensor_are_copied
    """
    return streaming_s(chip, 2.0 * gathered * params), streaming_s(
        chip, (2.0 + reduced) * (reduced > 0) * params
    )


@makes("overhead")
def _overhead_s(layouts: Layouts, model_layers: int, *, pool: Pool, stack: Stack) -> Floats:
    """Host work of a step outside the model.

    Formula:  stack.step_overhead_s * (1 - stack.launch_hidden); the embedded trainer's as profiled
    Units:    seconds per step, (N,).
    Source:   `software/*/stack.toml`; docs/profile.md. That a host which launches no kernels of the
              layers has its own work done behind them is assumed, and kept as the score over all
              tables rose.
    """
    found = (
        host_step_s(pool.node.chip, np.maximum(model_layers / layouts.pp, 1.0))
        if stack.embedded
        else None
    )
    if found is not None:
        return found
    return np.full(len(layouts), stack.step_overhead_s * (1.0 - stack.launch_hidden))


DDP_BUCKET_BYTES = 25.0 * 2**20
"""Half-precision gradients that torch's DDP sends at once: its own default (bucket_cap_mb), and
nanotron's (ddp_bucket_cap_mb in config.py)."""
LINEAR_TENSORS = 4.0
"""Large tensors of a layer: queries with keys and values, attention's output, both halves of the
gated product, and the way back."""


@makes("overhead")
def _compared_s(layouts: Layouts, dense: Floats, model: ModelSpec, *, stack: Stack) -> Floats:
    """Host time of a step's exchanges between replicas where their members compare them first.

    Formula:  stack.collective_check_s * replicas * exchanges: with zero1 one reduction and one
              gathering; unsharded a bucket of DDP each, layers * min(LINEAR_TENSORS - 1, b /
              (DDP_BUCKET_BYTES + b / (2 LINEAR_TENSORS))) for b bytes of a layer and one for each
              table; 0 where nothing is compared, or replicated
    Units:    seconds per step, (N,).
    Source:   torch's reducer closes a bucket with the tensor that fills it, half a tensor late in
              the mean, and the smallest tensor of a layer goes with another; the hook sends it
              from the thread that launches the backward pass (get_fp32_accum_hook of nanotron's
              gradient_accumulator.py).
    """
    if not stack.collective_check_s:
        return np.zeros(len(layouts))
    none, zero1 = (layouts.sharding == SHARDINGS.index(name) for name in ("none", "zero1"))
    replicas = np.where(none, layouts.dp * layouts.cp, layouts.shard_size)
    vocab = padded_vocab(model.vocab, layouts.tp.astype(np.float64), stack.vocab_multiple)
    tables = np.where(model.tied | (layouts.pp > 1), 1.0, 2.0)
    layers = np.maximum(model.total_layers / layouts.pp, 1.0)
    bytes_each = HALF * np.maximum(dense - tables * vocab * model.hidden / layouts.tp, 0.0) / layers
    filled = bytes_each / (DDP_BUCKET_BYTES + bytes_each / (2.0 * LINEAR_TENSORS))
    buckets = np.ceil(layers * np.minimum(LINEAR_TENSORS - 1.0, filled)) + tables
    exchanges = np.where(none, buckets, np.where(zero1, 2.0, 0.0))
    return np.asarray(stack.collective_check_s * replicas * (replicas > 1) * exchanges)


def gathered_bytes(precision: Precision) -> float:
    """Bytes in which a weight is gathered: those that compute takes.

    Formula:  4 in fp32 and tf32, else 2
    Units:    bytes per parameter.
    Source:   definition; weights of 8-bit products are gathered in half precision unless said
              otherwise.
    Valid:    every Precision.
    Checked:  tests/cost/test_measured.py
    """
    return 4.0 if precision in ("fp32", "tf32") else 2.0


@makes("dp_comm")
def data_exchange_s(
    layouts: Layouts,
    dense: Floats,
    expert: Floats,
    *,
    pool: Pool,
    stack: Stack,
    precision: Precision,
    units: Floats | float = 1.0,
) -> tuple[Floats, Floats]:
    """Reduction of gradients, and gathering of updated weights, once a step, (N,) each; in so many
    `units`, as fully_shard wraps modules, where those are more than the buckets.

    Formula:  none: all-reduce of gradients; zero1: reduce-scatter of gradients (all-reduce where
              the stack reduces after the passes) and all-gather of half-precision weights; zero3:
              nothing here (its exchange is per micro batch); where fewer ranks share than there
              are, the shards are all-reduced across
    Units:    seconds.
    Source:   ZeRO (arXiv:1910.02054); Megatron-Core distributed optimizer.
    Valid:    parameters of one rank, (N,).
    Checked:  tests/cost/test_step.py::test_distributed_optimizer_scatters_and_gathers
    """
    kind = layouts.sharding
    none, zero1, zero2 = (kind == SHARDINGS.index(name) for name in ("none", "zero1", "zero2"))
    size = np.where(none, layouts.dp * layouts.cp, layouts.shard_size)
    inside = [(group_of(size, layouts.tp, pool), dense)]
    if expert.any():
        sharing = np.where(none, layouts.expert_dp, layouts.expert_shard_size)
        inside.append((group_of(sharing, layouts.ep * layouts.etp, pool), expert))
    reduce, scatter, gather = (
        stack.factors.data
        * sum(_bucketed_s(operation, ranks, params, each, stack, units) for ranks, params in inside)
        for operation, each in (
            (all_reduce_s, stack.replicated_reduce_bytes or stack.reduce_bytes),
            (reduce_scatter_s, stack.reduce_bytes),
            (all_gather_s, _updated_bytes(precision, stack)),
        )
    )
    replicas = np.maximum(layouts.dp * layouts.cp // size, 1)
    replicated = np.zeros(len(layouts))
    if (replicas > 1).any():
        across = group_of(replicas, layouts.tp * size, pool)
        replicated = stack.factors.data * _bucketed_s(
            all_reduce_s, across, (dense + expert) / size, stack.reduce_bytes, stack, units
        )
    scatter = np.where(_is_after_passes(layouts, stack), reduce, scatter)
    scatter = np.where(
        none, reduce, np.where(zero1, scatter, 0.0) + np.where(replicas > 1, replicated, 0.0)
    )
    return scatter, np.where(zero1 | zero2, gather, 0.0)


def exchanged_bytes(
    layouts: Layouts, dense: Floats, expert: Floats, *, stack: Stack, precision: Precision
) -> tuple[Floats, Floats]:
    """Sizes of the collectives of `data_exchange_s`: gradients reduced, and weights gathered, once
    a step, (N,) each; what shards sum over replicas is left out.

    Formula:  parameters * bytes reduced, 0 in zero2 and zero3; parameters * bytes gathered in zero1
              and zero2
    Units:    bytes of one rank.
    Source:   as `data_exchange_s`.
    Valid:    parameters of one rank, (N,).
    Checked:  tests/search/test_groups.py::test_bytes_over_a_slow_link_are_the_time
    """
    kind = layouts.sharding
    none, zero1, zero2 = (kind == SHARDINGS.index(name) for name in ("none", "zero1", "zero2"))
    held = dense + expert
    replicated = stack.replicated_reduce_bytes or stack.reduce_bytes
    whole = none | _is_after_passes(layouts, stack)
    reduced = held * np.where(whole, replicated, np.where(zero1, stack.reduce_bytes, 0.0))
    gathered = held * np.where(zero1 | zero2, _updated_bytes(precision, stack), 0.0)
    several = layouts.dp * layouts.cp > 1
    return reduced * several, gathered * several


@makes("dp_comm")
def tied_exchange_s(layouts: Layouts, model: ModelSpec, *, pool: Pool, stack: Stack) -> Floats:
    """Reduction of a tied table's gradients between the first and the last stage, which hold a copy
    each, (N,).

    Formula:  all-reduce of a rank's part of the table between two ranks tp * cp * dp * (pp - 1)
              apart, in the narrower type of kept and sent gradients; 0 without a pipeline, or
              untied
    Units:    seconds.
    Source:   Megatron-LM (finalize_model_grads, embedding group) and DeepSpeed's pipeline engine
              (ReduceTiedGrads) run it once a step, after the last backward; DeepSpeed's
              PipelineModule.allreduce_tied_weight_gradients sends them as they are, whatever
              fp32_allreduce says of the others.
    Valid:    every replica and tensor-parallel rank exchanges its own part at the same time.
    Checked:  tests/cost/test_step.py::test_a_tied_table_is_reduced_between_the_ends
    """
    if not model.tied or not (layouts.pp > 1).any():
        return np.zeros(len(layouts))
    table = (
        padded_vocab(model.vocab, layouts.tp.astype(np.float64), stack.vocab_multiple)
        * model.hidden
        / layouts.tp
    )
    ends = group_of(
        np.minimum(layouts.pp, 2),
        np.maximum(1, layouts.tp * layouts.cp * layouts.dp * (layouts.pp - 1)),
        pool,
    )
    return np.asarray(
        stack.factors.data
        * all_reduce_s(ends, table * min(stack.gradient_bytes, stack.reduce_bytes))
    )


def _bucketed_s(
    operation: Callable[[Group, Floats], Floats],
    group: Group,
    params: Floats,
    bytes_each: float,
    stack: Stack,
    units: Floats | float,
) -> Floats:
    """Time of one collective per bucket: the bytes once, the latency as often as there are buckets;
    0 without bytes.

    Formula:  buckets * operation(params * bytes_each / buckets), buckets = max(units, ceil(params *
              bytes_each / bucket_bytes)); where buckets are counted in parameters max(units,
              ceil(params / max(bucket_params, bucket_params_per_rank * group's size))), and as many
              as units where nothing overlaps
    Units:    seconds per step, (N,).
    Source:   counting; torch DDP's buckets, FSDP's units; Megatron-Core's bucket_size
              (distributed_data_parallel_config.py), which is infinite without overlap_grad_reduce.
    """
    total_bytes = params * bytes_each
    size: Floats | float = stack.bucket_bytes / bytes_each
    if stack.bucket_params:
        size = np.maximum(stack.bucket_params, stack.bucket_params_per_rank * group.size)
    alone = bool(stack.bucket_params) and stack.dp_overlap == 0
    buckets = np.maximum(units, 1.0 if alone else np.ceil(params / size))
    return np.where(total_bytes > 0, buckets * operation(group, total_bytes / buckets), 0.0)


def _updated_bytes(precision: Precision, stack: Stack) -> float:
    """Bytes in which zero1 gathers a weight behind its update.

    Formula:  1 with narrow_param_gather in fp8 of one scale a tensor, else `gathered_bytes`
    Units:    bytes per parameter.
    Source:   Megatron-Core's fp8_param_gather (distributed_data_parallel_config.py); weights with a
              scale a block are gathered in the gradients' buffer, in half precision
              (reuse_grad_buf_for_mxfp8_param_ag).
    """
    return 1.0 if stack.narrow_param_gather and precision == "fp8" else gathered_bytes(precision)


OPTIMIZER_BYTES = 30.0
"""Bytes per updated parameter: read and write master and two moments (24), read gradient (4), write
half weight (2)."""
GRADIENT_PASSES = 3.0
"""Passes over the whole gradient: zeroing, scaling or copying, norm."""


CLIP_BYTES = 8.0
"""Bytes per gradient that clipping reads and writes, in fp32."""


@makes("optimizer")
def optimizer_s(
    layouts: Layouts, dense: Floats, expert: Floats, *, pool: Pool, stack: Stack
) -> Floats:
    """Adam and the passes over the gradients, (N,).

    `updated` are the parameters whose states a rank has, `held` the gradients that it keeps.

    Formula:  stack.factors.compute * (updated * OPTIMIZER_BYTES + held * GRADIENT_PASSES *
              stack.gradient_bytes) / (chip.memory_bytes_per_s * chip.memory_efficiency); the
              embedded trainer's fused step and norm as profiled, and one pass that clips; where
              the host updates, `hosted_update_s` instead; and `paged_s` of moments that are paged
    Units:    seconds.
    Source:   counted reads and writes of a fused Adam.
    Valid:    parameters of one rank, (N,).
    Checked:  tests/cost/test_step.py::test_optimizer_updates_its_share
    """
    shards = data_shards(layouts, stack)
    updated = dense / shards.optimizer[0][:, 0] + expert / shards.optimizer[1][:, 0]
    held = dense / shards.gradients[0][:, 0] + expert / shards.gradients[1][:, 0]
    chip = pool.node.chip
    adam, norm = (
        own_s(chip, "adam/fp32", np.maximum(updated, 1.0)),
        own_s(chip, "gradient_norm/fp32", np.maximum(held, 1.0)),
    )
    if stack.embedded and adam is not None and norm is not None:
        return stack.factors.compute * (adam + norm + streaming_s(chip, held * CLIP_BYTES))
    moved = updated * OPTIMIZER_BYTES + held * GRADIENT_PASSES * stack.gradient_bytes
    on_chip = stack.factors.compute * streaming_s(pool.node.chip, moved)
    if not (layouts.hosted.any() or layouts.optimizer.any()):
        return on_chip
    hosted = hosted_update_s(layouts, updated, pool=pool, stack=stack)
    return np.where(layouts.hosted, hosted, on_chip) + paged_s(layouts, updated, pool=pool)
