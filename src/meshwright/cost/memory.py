"""Memory of one rank of each stage, by term."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.stages import Floats, Stages, segment_layers
from meshwright.cost.states import states_of
from meshwright.cost.weights import (
    StageParams,
    communicator_bytes,
    largest_matrix_share,
)
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import RECOMPUTES, SHARDINGS, Layouts
from meshwright.values.models.adapters import trainable_share
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

__all__ = [
    "MEMORY_TERMS",
    "MESSAGE_BUFFERS",
    "Activations",
    "Memory",
    "activation_bytes",
    "price_memory",
]

_STATES = ("weights", "gradients", "optimizer", "communication")
_PASSING = ("activations", "recompute_workspace", "logits")
MEMORY_TERMS = (*_STATES[:3], *_PASSING, "communication", "libraries", "slack", "context")
MESSAGE_BUFFERS = 2.0
"""Buffers of a pipeline message per chunk of layers: one each way."""
LONE_SLACK_SHARE = 0.25
"""Of the allocator's slack, what is left where no tensor of a layer passes through an exchange:
reserved memory of nanotron's published runs is 0.05 of what comes and goes above the allocated at
tp = 1 (113 runs), 0.2 to 0.3 beyond (997)."""
_FACTOR_OF = dict.fromkeys(_STATES, "states") | dict.fromkeys(_PASSING, "activations")
"""The calibration's factor that scales a term; slack follows activations, libraries and context are
the software's own figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes by term of MEMORY_TERMS, each (N, S)."""

    terms: dict[str, Floats]

    @property
    def allocated(self) -> Floats:
        """Peak that the framework's allocator hands out."""
        beside = ("slack", "context")
        return reduce(np.add, [term for name, term in self.terms.items() if name not in beside])

    @property
    def reserved(self) -> Floats:
        """Peak that the allocator takes from the driver."""
        return self.allocated + self.terms["slack"]

    @property
    def used(self) -> Floats:
        """What the card shows: reserved plus context and communicators."""
        return self.reserved + self.terms["context"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Activations:
    """What one layer of each segment and the head keep for one micro batch, gathered to layouts:
    (N,) each, one entry a segment."""

    kept: tuple[Floats, ...]
    """Without recompute."""
    after_selective: tuple[Floats, ...]
    inputs: tuple[Floats, ...]
    widest: tuple[Floats, ...]
    head_saved: Floats
    loss_peak: Floats
    loss_saved: Floats
    """Kept of one head's loss until its backward pass, while those of multi-token prediction
    follow."""
    boundary: Floats
    """Bytes of one pipeline message."""
    offloaded_layers: int = 0
    """Layers of each stage that keep nothing on the chip."""
    gathered: Floats
    """Bytes of a layer's input as tensor-parallel ranks see it where sequence parallelism gathers
    it; else 0."""


@makes("memory.activations", "memory.recompute_workspace")
def activation_bytes(
    layouts: Layouts, stages: Stages, acts: Activations, *, model: ModelSpec
) -> tuple[Floats, Floats]:
    """Kept activations and the recompute workspace of each stage.

    Formula:  in_flight * sum over layers of what recompute leaves; full uniform keeps one input per
              unit of n layers and works on one unit; full block recomputes the first n layers of
              each chunk; layers whose activations wait in host memory, where there is no pipeline,
              keep nothing
    Units:    bytes, (N, S) each.
    Source:   Korthikanti et al. (arXiv:2205.05198), sections 4 and 5; Megatron-Core
              `--recompute-method`, `--cpu-offloading-num-layers` (which transformer_config.py
              refuses with pp > 1).
    Valid:    all schedules of `Stages.in_flight`.
    Checked:  tests/cost/test_memory.py
    """
    kind = layouts.recompute[:, None]
    full, selective = kind == RECOMPUTES.index("full"), kind == RECOMPUTES.index("selective")
    unit = np.where(layouts.recompute_layers < 1, 1, layouts.recompute_layers)[:, None]
    counts = segment_layers(model, stages)
    kept, workspace = np.zeros(stages.layers.shape), np.zeros(stages.layers.shape)
    redone = redone_share(layouts, stages)
    for count, whole, partial, entry, wide in zip(
        counts, acts.kept, acts.after_selective, acts.inputs, acts.widest, strict=True
    ):
        # A count of layers is split into those that are redone, which keep an entry per unit, and
        # the rest, which keeps everything: with method block the first n of each chunk are redone.
        layer = np.where(selective, partial[:, None], whole[:, None])
        uniform = count * entry[:, None] / np.where(layouts.block_recompute[:, None] > 0, 1, unit)
        recomputed = redone * uniform + (1.0 - redone) * count * whole[:, None]
        kept = kept + np.where(full, recomputed, count * layer)
        # The fullest moment of the backward pass: what was freed of one unit is there again, beside
        # the widest operator. One unit at a time, so the largest of the segments counts, not their
        # sum; a segment without layers on this stage must not count at all.
        present = count > 0
        unit_bytes = np.where(layouts.block_recompute[:, None] > 0, 1, unit) * whole[:, None]
        freed = np.where(full, unit_bytes, np.where(selective, (whole - partial)[:, None], 0.0))
        workspace = np.maximum(workspace, present * (freed + wide[:, None]))
    # Kept bytes grow with the micro batches in flight; the workspace does not, as one works back at
    # a time.
    offloaded = acts.offloaded_layers * (layouts.pp[:, None] == 1)
    on_chip = 1.0 - np.minimum(1.0, offloaded / np.maximum(stages.layers, 1.0))
    return kept * stages.in_flight * on_chip, workspace


def redone_share(layouts: Layouts, stages: Stages) -> Floats:
    """Share of a stage's layers that full recompute runs again, (N, S): all, or n layers per chunk
    with method block."""
    per_chunk = stages.layers / layouts.vpp[:, None]
    blocks = layouts.recompute_layers[:, None]
    share = np.where(
        (layouts.block_recompute[:, None] > 0) & (blocks >= 0),
        np.minimum(1.0, blocks / np.maximum(per_chunk, 1e-9)),
        1.0,
    )
    return np.where(layouts.recompute[:, None] == RECOMPUTES.index("full"), share, 0.0)


@makes(*(f"memory.{name}" for name in MEMORY_TERMS))
def price_memory(
    layouts: Layouts,
    stages: Stages,
    params: StageParams,
    acts: Activations,
    *,
    model: ModelSpec,
    work: Workload,
    stack: Stack,
    pool: Pool,
) -> Memory:
    """Memory of one rank of each stage.

    Formula:  weights + gradients + optimizer (each over its shards) + activations in flight +
              logits and loss + what a layer's workspace takes beyond them (on the last stage the
              loss is over before the first layer works back) + communication buffers + workspaces
              of libraries + slack (reserved, not allocated) + context and communicators (outside
              the allocator)
    Units:    bytes, (N, S).
    Source:   ZeRO (arXiv:1910.02054) table 1 for the states; the rest as documented at each term.
              Under a pipeline FSDP keeps a stage's weights gathered and its gradients whole until
              the last micro batch (torch.distributed.pipelining; torchtitan's reshard_after_forward
              policy).
    Valid:    mixed precision with Adam; fp32 keeps no second copy of the weights.
    Checked:  tests/cost/test_memory.py
    """
    states = states_of(layouts, params, model=model, work=work, stack=stack, chip=pool.node.chip)
    activations, workspace = activation_bytes(layouts, stages, acts, model=model)
    last, heads = stages.last, 1 + model.mtp_layers
    # What micro batches need while they pass and what the optimizer needs while it steps are not
    # there together: the step begins when activations are gone. Their sum would refuse layouts that
    # fit, so the fuller of the two moments is taken.
    most = _Passing(
        gradients=states.gradients,
        activations=activations + last * heads * acts.head_saved[:, None],
        recompute_workspace=workspace,
        logits=last * (acts.loss_peak + model.mtp_layers * acts.loss_saved)[:, None],
        communication=_unsharded_bytes(layouts, params, stages, model=model, stack=stack),
    )
    passing, stepping = _before_or_in_step(
        _passing(layouts, params, most, stack=stack, trainable=trainable_share(model, work)),
        states.stepping,
    )
    terms = {
        "weights": states.weights,
        "gradients": passing.gradients + states.transient,
        "optimizer": states.optimizer + stepping,
        "activations": passing.activations,
        "recompute_workspace": passing.recompute_workspace,
        "logits": passing.logits,
        "communication": (
            passing.communication
            + stack.gathered_copies * acts.gathered[:, None]
            + _bucket_bytes(layouts, stack)
            + _message_bytes(layouts, stages, acts, stack=stack)
        ),
    }
    terms = {name: getattr(stack.factors, _FACTOR_OF[name]) * size for name, size in terms.items()}
    coming = terms["activations"] + terms["recompute_workspace"]
    return Memory(terms=terms | _beside(layouts, coming, model=model, stack=stack, pool=pool))


def _beside(
    layouts: Layouts, coming: Floats, *, model: ModelSpec, stack: Stack, pool: Pool
) -> dict[str, Floats]:
    """What is used beside tensors, (N, S): slack of the allocator, which grows with what comes and
    goes and not with what stays; workspaces of libraries; and what lies outside of the
    allocator."""
    return {
        "slack": coming * _slack_frac(layouts, stack),
        "libraries": np.full_like(coming, _library_bytes(stack, pool.node.chip, model)),
        "context": stack.context_bytes
        + np.zeros_like(coming)
        + communicator_bytes(layouts, pool=pool, stack=stack),
    }


def _bucket_bytes(layouts: Layouts, stack: Stack) -> Floats:
    """Buffers that gradients are copied into to be sent, (N, 1): with zero3 one at most, without
    shards or replicas none."""
    copies = np.where(
        layouts.sharding >= SHARDINGS.index("zero3"),
        min(stack.bucket_copies, 1.0),
        stack.bucket_copies,
    )
    sent = (layouts.dp * layouts.cp > 1) & (layouts.sharding != SHARDINGS.index("none"))
    return np.asarray(copies * sent * stack.bucket_bytes)[:, None]


@makes("memory.communication")
def _message_bytes(layouts: Layouts, stages: Stages, acts: Activations, *, stack: Stack) -> Floats:
    """Buffers of a pipeline's messages, (N, S).

    Formula:  a message each way for each chunk; with buffers made ahead one for each micro batch at
              every end that receives (none before the first chunk, none behind the last), less the
              inputs of micro batches in flight, which activations hold
    Source:   torch.distributed.pipelining (stage.py: _setup_forward_recv_info and
              _create_grad_recv_info, for every micro batch).
    """
    two = MESSAGE_BUFFERS * layouts.vpp[:, None]
    ends = two - stages.first - stages.last
    ahead = np.maximum(
        two, ends * layouts.num_microbatches[:, None] - stages.in_flight * (1.0 - stages.first)
    )
    buffers = ahead if stack.messages_ahead else two
    return np.asarray((layouts.pp[:, None] > 1) * acts.boundary[:, None] * buffers)


@makes("memory.slack")
def _slack_frac(layouts: Layouts, stack: Stack) -> Floats:
    """Reserved beyond allocated, against what comes and goes, (N, 1): less where no tensor of a
    layer passes through an exchange, since blocks that a second stream has used are free only when
    it is done with them (torch.Tensor.record_stream).

    Formula:  fragmentation_frac, LONE_SLACK_SHARE of it without exchanges; times activations and
              workspace
    Source:   `software/*/stack.toml`.
    """
    split = (layouts.tp > 1) | (layouts.cp > 1) | (layouts.ep > 1)
    exchanged = split | (layouts.sharding >= SHARDINGS.index("zero3"))
    return stack.fragmentation_frac * np.where(exchanged, 1.0, LONE_SLACK_SHARE)[:, None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Passing:
    """What comes and goes in a step, (N, S) each."""

    gradients: Floats
    activations: Floats
    recompute_workspace: Floats
    logits: Floats
    communication: Floats


def _passing(
    layouts: Layouts, params: StageParams, most: _Passing, *, stack: Stack, trainable: float
) -> _Passing:
    """Of what comes and goes, what is there at the fullest moment; `most` has the largest of each.

    Formula:  the loss and the first layer that works back never meet: a workspace counts where it
              is more than the logits. Where full sharding frees gradients after a step, the largest
              of: the loss (ends gathered, gradients of earlier micro batches), the last layer's
              backward (its weights and gradients whole), the first layer's (all gradients, no
              activations)
    Source:   torch.distributed.fsdp (fully_shard): the root's weights stay gathered through the
              loss; set_requires_gradient_sync(False) keeps gradients whole, in the type of the
              reduction, until the last micro batch.
    """
    fully = layouts.sharding[:, None] >= SHARDINGS.index("zero3")
    workspace = np.maximum(0.0, most.recompute_workspace - most.logits)
    if not (stack.gradients_freed and fully.any()):
        return replace(most, recompute_workspace=workspace)
    piped, several = layouts.pp[:, None] > 1, layouts.num_microbatches[:, None] > 1
    # beside tp a mesh of one rank is wrapped too; a lone GPU has none
    wrapped = (layouts.shard_size * layouts.tp > 1)[:, None]
    whole = stack.reduction_deferred & several & ~piped & wrapped
    unreduced = params.total * stack.reduce_bytes * trainable
    earlier = np.where(whole, unreduced, most.gradients * several)
    ends = params.ends * 2.0 * (stack.gathered == "layer")
    through_loss = np.where(piped, most.communication, ends)
    beyond = np.maximum(0.0, most.logits - most.recompute_workspace)
    exchange = np.maximum(through_loss, most.communication - beyond)
    at_loss = earlier + most.activations + most.logits + workspace + exchange
    late = most.gradients + most.recompute_workspace + most.communication > at_loss
    return _Passing(
        gradients=np.where(late | ~fully, most.gradients, earlier),
        activations=np.where(late & fully, 0.0, most.activations),
        recompute_workspace=np.where(late & fully, most.recompute_workspace, workspace),
        logits=np.where(late & fully, 0.0, most.logits),
        communication=np.where(late | ~fully, most.communication, exchange),
    )


def _before_or_in_step(passing: _Passing, stepping: Floats) -> tuple[_Passing, Floats]:
    """Return what is there of both at the fuller moment: a step begins when activations are
    gone."""
    if not stepping.any():
        return passing, stepping
    later = stepping > passing.activations + passing.recompute_workspace + passing.logits
    kept = {name: np.where(later, 0.0, getattr(passing, name)) for name in _PASSING}
    return replace(passing, **kept), np.where(later, stepping, 0.0)


@makes("memory.libraries")
def _library_bytes(stack: Stack, chip: Chip, model: ModelSpec) -> float:
    """Workspaces of matrix-product libraries, which the framework allocates once.

    Formula:  handles * the chip's workspace, and what a run sets more for torch's two handles
    Source:   `Chip.gemm_workspace_bytes`, `Stack.library_workspaces`.
    """
    own, handles = chip.gemm_workspace_bytes, stack.library_workspaces
    grouped = stack.grouped_workspaces if model.moe is not None else 0.0
    more = max(0.0, stack.thread_workspace_bytes - own)
    return (handles + grouped) * own + min(2.0, handles) * more


@makes("memory.communication")
def _unsharded_bytes(
    layouts: Layouts, params: StageParams, stages: Stages, *, model: ModelSpec, stack: Stack
) -> Floats:
    """What full sharding holds whole beside its shards, (N, S).

    Formula:  under a pipeline a stage's weights and gradients, else what is in work
    Source:   torch.distributed.fsdp (fully_shard).
    """
    fully = layouts.sharding[:, None] >= SHARDINGS.index("zero3")
    piped = (layouts.pp[:, None] > 1) & (stack.family == "fsdp")
    whole = params.total * (2.0 + stack.reduce_bytes)
    in_work = _gathered_bytes(params, stages, model, stack)
    return np.where(fully, np.where(piped, whole, in_work), 0.0)


def _gathered_bytes(params: StageParams, stages: Stages, model: ModelSpec, stack: Stack) -> Floats:
    """Whole weights and gradients of what is in work: two layers of weights (one prefetched), one
    of gradients, and embedding and head, which stay gathered while the loss works back; or as many
    matrices where they are gathered one by one.
    """
    layer = (params.total - params.ends) / np.maximum(stages.layers, 1)
    share = largest_matrix_share(model) if stack.gathered == "matrix" else 1.0
    ends = params.ends * (2.0 + stack.reduce_bytes) if stack.gathered == "layer" else 0.0
    return layer * share * (2 * 2.0 + stack.reduce_bytes) + ends
