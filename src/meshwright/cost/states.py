"""What training keeps from step to step on a chip: weights, gradients, optimizer states, over the
ranks that share them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.frozen import frozen_weight_bytes
from meshwright.cost.kernels import element_bytes
from meshwright.cost.stages import Floats
from meshwright.cost.weights import StageParams
from meshwright.values.hardware.chip import Chip
from meshwright.values.layout import OPTIMIZERS, SHARDINGS, Layouts
from meshwright.values.models.adapters import trainable_share
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

__all__ = ["EIGHT_BIT_MOMENTS", "PAGED", "Shards", "States", "data_shards", "split", "states_of"]

EIGHT_BIT_MOMENTS = 2.0 * (1.0 + 4.0 / 256.0)
"""Bytes per parameter of Adam's two moments in 8 bits, with an fp32 scale per block of 256
(bitsandbytes, optim/optimizer.py, blockwise_quant_optimizer: blocksize 256)."""
PAGED = OPTIMIZERS.index("paged-adam-8bit")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """Over how many ranks each state is split, (N, 1) for dense and expert parameters."""

    weights: tuple[Floats, Floats]
    gradients: tuple[Floats, Floats]
    optimizer: tuple[Floats, Floats]


def data_shards(layouts: Layouts, stack: Stack) -> Shards:
    """Return the sharding factors.

    Formula:  zero1 splits optimizer states over `shard_size` ranks (all of dp * cp unless given, or
              of dp where the software leaves context out; experts: their own replicas over the
              groups of shards), zero2 gradients too, zero3 and hybrid weights too
    Units:    ranks, (N, 1).
    Source:   ZeRO (arXiv:1910.02054); Megatron-Core's distributed optimizer, whose instances divide
              both kinds of replicas (parallel_state.py: intra_partial_expert_data_parallel_size);
              PyTorch FSDP (arXiv:2304.11277).
    Valid:    shard_size divides dp * cp.
    Checked:  tests/cost/test_memory.py
    """
    kind = layouts.sharding[:, None]
    dense = layouts.shard_size[:, None].astype(np.float64)
    if stack.zero1_shards == "states-over-dp":
        dense = np.minimum(dense, layouts.dp[:, None])
    expert = layouts.expert_shard_size[:, None].astype(np.float64)
    levels = [SHARDINGS.index("zero3"), SHARDINGS.index("zero2"), SHARDINGS.index("zero1")]
    pairs = [
        (np.where(kind >= level, dense, 1.0), np.where(kind >= level, expert, 1.0))
        for level in levels
    ]
    return Shards(weights=pairs[0], gradients=pairs[1], optimizer=pairs[2])


@dataclass(frozen=True, kw_only=True, slots=True)
class States:
    """What lasts from step to step, and what goes with it, (N, S) each."""

    weights: Floats
    gradients: Floats
    """Kept between micro batches."""
    transient: Floats
    """Of a gradient beside them, for a moment."""
    optimizer: Floats
    stepping: Floats
    """Beside the optimizer's while it steps."""


@makes("memory.weights", "memory.gradients", "memory.optimizer")
def states_of(
    layouts: Layouts,
    params: StageParams,
    *,
    model: ModelSpec,
    work: Workload,
    stack: Stack,
    chip: Chip,
) -> States:
    """Weights, gradients and optimizer states over their shards, (N, S) each.

    Formula:  weights: parameters / shards * (2 bytes, 4 in fp32; fully sharded the master's alone)
              + copies in narrow formats; gradients: parameters / shards * gradient_bytes;
              optimizer: parameters / shards * (moment_bytes + master_bytes); moments of 8 bits
              EIGHT_BIT_MOMENTS, but for embeddings, or none where they are paged out; where the
              host updates, neither gradients nor states, and no weights where they wait there
    Units:    bytes.
    Source:   ZeRO (arXiv:1910.02054), table 1; bytes as in `software/*/stack.toml`; transformers'
              Trainer keeps 32-bit moments of embeddings (get_optimizer_cls_and_kwargs,
              register_module_override); ZeRO-Offload (arXiv:2101.06840), section 4.1.
    Valid:    Adam.
    Checked:  tests/cost/test_host.py
    """
    shards, trainable = data_shards(layouts, stack), trainable_share(model, work)
    half = work.precision not in ("fp32", "tf32")
    fully = layouts.sharding[:, None] >= SHARDINGS.index("zero3")
    master = stack.master_bytes if half else 0.0
    sharded_half = 2.0 if stack.zero3_weights == "master-and-half" else 0.0
    stored_weight = np.where(fully & (master > 0), sharded_half, 2.0) if half else 4.0
    weights = split(params, shards.weights) * (stored_weight + np.where(fully, master, 0.0))
    weights = weights + ~fully * (params.total - params.ends) * _cached_weight_bytes(work, stack)
    updated = split(params, shards.optimizer)
    in_shards = stack.zero1_shards == "states-and-gradients"
    kept = updated if in_shards else split(params, shards.gradients)
    reduced = (layouts.dp * layouts.cp > 1)[:, None]  # a lone replica has no buckets
    zero2 = layouts.sharding[:, None] == SHARDINGS.index("zero2")
    several = layouts.num_microbatches[:, None] > 1
    late = stack.reduction_deferred & zero2 & several & (shards.gradients[0] > 1)
    reduce_bytes, gradient_bytes, moment_bytes = (
        (stack.reduce_bytes, stack.gradient_bytes, stack.moment_bytes) if half else (4.0, 4.0, 8.0)
    )
    summed = np.where(late, params.total * reduce_bytes, kept * gradient_bytes)
    transient = params.total * stack.transient_gradient_bytes * trainable
    if work.lora_rank:
        weights = _frozen_bytes(params, shards, frozen_weight_bytes(work, stack, chip))
    here = ~layouts.hosted[:, None]
    master_here = np.where(fully, master * (not work.lora_rank), 0.0) * ~here
    weights = weights - split(params, shards.weights) * master_here
    moments = _moments(layouts, params, updated, moment_bytes, tied=model.tied)
    return States(
        weights=weights * ~layouts.hosts_weights[:, None],
        gradients=summed * trainable * here,
        transient=transient * (~fully & ~zero2) * reduced * here,
        optimizer=(moments + updated * np.where(fully, 0.0, master)) * trainable * here,
        stepping=updated * stack.step_bytes * trainable * here,
    )


def _moments(
    layouts: Layouts, params: StageParams, updated: Floats, bytes_each: float, *, tied: bool
) -> Floats:
    """Adam's moments on the chip, (N, S): as the software keeps them, or in 8 bits but for
    embeddings, or none that stay where they are paged.

    Formula:  updated * bytes; in 8 bits updated * EIGHT_BIT_MOMENTS + embeddings * (bytes -
              EIGHT_BIT_MOMENTS), paged 0; embeddings are half of an untied model's ends
    Source:   as `states_of`.
    """
    eight = (layouts.optimizer > 0)[:, None]
    if not eight.any():
        return updated * bytes_each
    embeddings = params.ends * (1.0 if tied else 0.5) * updated / np.maximum(params.total, 1.0)
    narrow = updated * EIGHT_BIT_MOMENTS + embeddings * (bytes_each - EIGHT_BIT_MOMENTS)
    paged = (layouts.optimizer == PAGED)[:, None]
    return np.where(eight, np.where(paged, 0.0, narrow), updated * bytes_each)


def _frozen_bytes(params: StageParams, shards: Shards, bytes_each: float) -> Floats:
    """Weights beside adapters: embedding and head in half precision, layers as the stack keeps
    them, (N, S).

    Formula:  (weights - ends) / ranks * bytes_each + ends / ranks * 2
    Source:   `frozen_weight_bytes`; adapters stand in layers alone (arXiv:2106.09685, section 4.2).
    """
    ends = params.ends / shards.weights[0]
    return (split(params, shards.weights) - ends) * bytes_each + ends * 2.0


def _cached_weight_bytes(work: Workload, stack: Stack) -> float:
    """Bytes per weight of a linear layer that its casts to a narrow format keep from the first
    micro batch on.

    Source:   Transformer Engine's get_weight_workspace with is_first_microbatch, as Megatron-Core's
              layers call it.
    """
    narrow = element_bytes(work.precision)
    return stack.narrow_weight_copies * narrow if narrow <= 1.0 else 0.0


def split(params: StageParams, shards: tuple[Floats, Floats]) -> Floats:
    """Parameters of a rank over the ranks that share them, (N, S).

    Formula:  dense / ranks + experts / ranks
    Units:    parameters.
    Source:   definition.
    Valid:    any layout.
    Checked:  tests/cost/test_host.py
    """
    return params.dense / shards[0] + params.expert / shards[1]
