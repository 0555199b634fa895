"""Memory of one rank of each stage, by term."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from meshwright.cost.shapes import Floats
from meshwright.cost.stages import Stages, segment_layers
from meshwright.cost.weights import StageParams, largest_matrix_share
from meshwright.hardware.chip import Chip
from meshwright.layout import RECOMPUTES, SHARDINGS, Layouts
from meshwright.models.spec import ModelSpec
from meshwright.stack import Stack
from meshwright.workload import Workload

__all__ = ["MEMORY_TERMS", "MESSAGE_BUFFERS", "Activations", "Memory", "Shards", "activation_bytes", "data_shards", "price_memory"]

MEMORY_TERMS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "recompute_workspace",
    "logits",
    "communication",
    "libraries",
    "slack",
    "context",
)
MESSAGE_BUFFERS = 2.0
"""Buffers of a pipeline message per chunk of layers: one each way."""
_FACTOR_OF = {name: "activations" if name in ("activations", "recompute_workspace", "logits") else "states" for name in MEMORY_TERMS[:-3]}
"""The calibration's factor that scales a term; slack follows activations, libraries and context are the software's own figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes by term of MEMORY_TERMS, each (N, S)."""

    terms: dict[str, Floats]

    @property
    def allocated(self) -> Floats:
        """Peak that the framework's allocator hands out."""
        return reduce(np.add, [v for name, v in self.terms.items() if name not in ("slack", "context")])

    @property
    def reserved(self) -> Floats:
        """Peak that the allocator takes from the driver."""
        return self.allocated + self.terms["slack"]

    @property
    def used(self) -> Floats:
        """What the card shows: reserved plus context and communicators."""
        return self.reserved + self.terms["context"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """Over how many ranks each state is split, (N, 1) for dense and expert parameters."""

    weights: tuple[Floats, Floats]
    gradients: tuple[Floats, Floats]
    optimizer: tuple[Floats, Floats]


def data_shards(layouts: Layouts) -> Shards:
    """Return the sharding factors.

    Formula:  zero1 splits optimizer states over `shard_size` ranks (all of dp * cp unless given; experts: at most the expert
              data-parallel ranks), zero2 gradients too, zero3 and hybrid weights too
    Units:    ranks, (N, 1).
    Source:   ZeRO (arXiv:1910.02054); Megatron-Core's distributed optimizer; PyTorch FSDP (arXiv:2304.11277).
    Valid:    shard_size divides dp * cp.
    Checked:  tests/cost/test_memory.py
    """
    kind = layouts.sharding[:, None]
    dense = layouts.shard_size[:, None].astype(np.float64)
    expert = np.maximum(1.0, np.minimum(dense, layouts.expert_dp[:, None]))
    levels = [SHARDINGS.index("zero3"), SHARDINGS.index("zero2"), SHARDINGS.index("zero1")]
    pairs = [(np.where(kind >= level, dense, 1.0), np.where(kind >= level, expert, 1.0)) for level in levels]
    return Shards(weights=pairs[0], gradients=pairs[1], optimizer=pairs[2])


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """What one layer of each segment and the head keep for one micro batch, gathered to layouts: (N,) each, one entry a segment."""

    kept: tuple[Floats, ...]
    """Without recompute."""
    after_selective: tuple[Floats, ...]
    inputs: tuple[Floats, ...]
    widest: tuple[Floats, ...]
    head_saved: Floats
    loss_peak: Floats
    loss_saved: Floats
    """Kept of one head's loss until its backward pass, while those of multi-token prediction follow."""
    boundary: Floats
    """Bytes of one pipeline message."""
    gathered: Floats
    """Bytes of a layer's input as tensor-parallel ranks see it where sequence parallelism gathers it; else 0."""


def activation_bytes(layouts: Layouts, stages: Stages, acts: Activations, *, model: ModelSpec) -> tuple[Floats, Floats]:
    """Kept activations and the recompute workspace of each stage.

    Formula:  in_flight * sum over layers of what recompute leaves; full uniform keeps one input per unit of n layers and works on one
              unit; full block recomputes the first n layers of each chunk
    Units:    bytes, (N, S) each.
    Source:   Korthikanti et al. (arXiv:2205.05198), sections 4 and 5; Megatron-Core `--recompute-method`.
    Valid:    all schedules of `Stages.in_flight`.
    Checked:  tests/cost/test_memory.py
    """
    kind = layouts.recompute[:, None]
    full, selective = kind == RECOMPUTES.index("full"), kind == RECOMPUTES.index("selective")
    unit = np.where(layouts.recompute_layers < 1, 1, layouts.recompute_layers)[:, None]
    counts = segment_layers(model, stages)
    kept, workspace = np.zeros(stages.layers.shape), np.zeros(stages.layers.shape)
    redone = redone_share(layouts, stages)
    for count, whole, partial, entry, wide in zip(counts, acts.kept, acts.after_selective, acts.inputs, acts.widest, strict=True):
        layer = np.where(selective, partial[:, None], whole[:, None])
        uniform = count * entry[:, None] / np.where(layouts.block_recompute[:, None] > 0, 1, unit)
        recomputed = redone * uniform + (1.0 - redone) * count * whole[:, None]
        kept = kept + np.where(full, recomputed, count * layer)
        present = count > 0
        unit_bytes = np.where(layouts.block_recompute[:, None] > 0, 1, unit) * whole[:, None]
        freed = np.where(full, unit_bytes, np.where(selective, (whole - partial)[:, None], 0.0))
        workspace = np.maximum(workspace, present * (freed + wide[:, None]))
    return kept * stages.in_flight, workspace


def redone_share(layouts: Layouts, stages: Stages) -> Floats:
    """Share of a stage's layers that full recompute runs again, (N, S): all, or n layers per chunk with method block."""
    per_chunk = stages.layers / layouts.vpp[:, None]
    blocks = layouts.recompute_layers[:, None]
    share = np.where((layouts.block_recompute[:, None] > 0) & (blocks >= 0), np.minimum(1.0, blocks / np.maximum(per_chunk, 1e-9)), 1.0)
    return np.where(layouts.recompute[:, None] == RECOMPUTES.index("full"), share, 0.0)


def price_memory(
    layouts: Layouts, stages: Stages, params: StageParams, acts: Activations, *, model: ModelSpec, work: Workload, stack: Stack, chip: Chip
) -> Memory:
    """Memory of one rank of each stage.

    Formula:  weights + gradients + optimizer (each over its shards) + activations in flight + logits and loss + what a layer's workspace
              takes beyond them (on the last stage the loss is over before the first layer works back) + communication buffers
              + workspaces of libraries + slack (reserved, not allocated) + context (outside the allocator)
    Units:    bytes, (N, S).
    Source:   ZeRO (arXiv:1910.02054) table 1 for the states; the rest as documented at each term. Under a pipeline FSDP keeps a stage's
              weights gathered and its gradients whole until the last micro batch (torch.distributed.pipelining; torchtitan's
              reshard_after_forward policy).
    Valid:    mixed precision with Adam; fp32 keeps no second copy of the weights.
    Checked:  tests/cost/test_memory.py
    """
    shards, half = data_shards(layouts), work.precision not in ("fp32", "tf32")
    trainable = _trainable_share(work)
    activations, workspace = activation_bytes(layouts, stages, acts, model=model)
    last, heads = stages.last, 1 + model.mtp_layers
    logits = last * (acts.loss_peak + model.mtp_layers * acts.loss_saved)[:, None]
    fully = layouts.sharding[:, None] >= SHARDINGS.index("zero3")
    master = stack.master_bytes if half else 0.0
    stored_weight = np.where(fully & (master > 0), 2.0 * stack.half_shards, 2.0) if half else 4.0
    weights = _split(params, shards.weights) * (stored_weight + np.where(fully, master, 0.0))
    optimizer = _split(params, shards.optimizer) * ((stack.moment_bytes if half else 8.0) + np.where(fully, 0.0, master)) * trainable
    gradient = stack.gradient_bytes if half else 4.0
    gradients = _split(params, shards.gradients) * gradient * trainable
    reduced = (layouts.dp * layouts.cp > 1)[:, None]  # a lone replica has no buckets
    transient = _split(params, shards.weights) * stack.transient_gradient_bytes * trainable * ~fully * reduced
    piped = (layouts.pp[:, None] > 1) & (stack.family == "fsdp")
    whole = params.total * (2.0 + stack.reduce_bytes)
    unsharded = np.where(fully, np.where(piped, whole, _gathered_bytes(params, stages, model, stack)), 0.0)
    terms = {
        "weights": _split(params, shards.weights) * 2.0 if work.lora_rank else weights,
        "gradients": gradients + transient,
        "optimizer": optimizer,
        "activations": activations + last * heads * acts.head_saved[:, None],
        "recompute_workspace": np.maximum(0.0, workspace - logits),
        "logits": logits,
        "communication": unsharded
        + stack.gathered_copies * acts.gathered[:, None]
        + (layouts.pp[:, None] > 1) * MESSAGE_BUFFERS * acts.boundary[:, None] * layouts.vpp[:, None],
    }
    terms = {name: getattr(stack.factors, _FACTOR_OF[name]) * size for name, size in terms.items()}
    passing = terms["activations"] + terms["recompute_workspace"]
    terms["slack"] = passing * stack.fragmentation_frac
    terms["libraries"] = np.full_like(passing, _library_bytes(stack, chip, model))
    terms["context"] = np.full_like(passing, stack.context_bytes)
    return Memory(terms=terms)


def _trainable_share(work: Workload) -> float:
    """Share of the weights that learn: all, or next to none with adapters (a rank of 16 to 64 is under 1 % of a layer)."""
    return 1.0 if work.lora_rank == 0 else 0.01


def _library_bytes(stack: Stack, chip: Chip, model: ModelSpec) -> float:
    """Workspaces of matrix-product libraries, which the framework allocates once."""
    own = chip.gemm_workspace_bytes
    grouped = stack.grouped_workspaces if model.moe is not None else 0.0
    return (stack.library_workspaces + grouped) * own + min(2.0, stack.library_workspaces) * max(0.0, stack.thread_workspace_bytes - own)


def _split(params: StageParams, shards: tuple[Floats, Floats]) -> Floats:
    return params.dense / shards[0] + params.expert / shards[1]


def _gathered_bytes(params: StageParams, stages: Stages, model: ModelSpec, stack: Stack) -> Floats:
    """Whole weights and gradients of what is in work: two layers of weights (one prefetched), one of gradients, and embedding and head,
    which stay gathered while the loss works back; or as many matrices where they are gathered one by one."""
    layer = (params.total - params.ends) / np.maximum(stages.layers, 1)
    share = largest_matrix_share(model) if stack.gathered == "matrix" else 1.0
    ends = params.ends * (2.0 + stack.reduce_bytes) if stack.gathered == "layer" else 0.0
    return layer * share * (2 * 2.0 + stack.reduce_bytes) + ends
