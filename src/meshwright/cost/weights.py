"""Parameters that one rank holds, per stage, before data-parallel sharding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from meshwright.cost._makes import makes
from meshwright.cost.ends import padded_vocab
from meshwright.cost.stages import Floats, Stages, segment_layers
from meshwright.values.data import package_rows
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Pool
from meshwright.values.layout import Layouts
from meshwright.values.models.params import block_params, head_params, model_params, norm_params
from meshwright.values.models.spec import ModelSpec, Segment
from meshwright.values.stack import Stack
from meshwright.values.units import MIB

__all__ = [
    "StageParams",
    "communicator_bytes",
    "largest_matrix_share",
    "layer_params",
    "stage_params",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageParams:
    """Parameters of one rank of each stage, (N, S)."""

    dense: Floats
    """Split over tp where they can be; the same on every rank of the dp * cp group."""
    expert: Floats
    """Split over ep and etp; the same on every rank of the expert data-parallel group."""

    ends: Floats
    """Of `dense`, embedding and head."""

    @property
    def total(self) -> Floats:
        """Both."""
        return self.dense + self.expert


def layer_params(model: ModelSpec, segment: Segment, layouts: Layouts) -> tuple[Floats, Floats]:
    """Dense and expert parameters of one layer of a segment on one rank, (N,) each.

    Formula:  sharded / tp + replicated; experts / (ep * etp)
    Units:    parameters.
    Source:   Megatron-LM (arXiv:1909.08053); Megatron-Core MoE (arXiv:2504.14960).
    Valid:    mean layer of the segment.
    Checked:  tests/cost/test_weights.py
    """
    dense, expert = np.zeros(len(layouts)), np.zeros(len(layouts))
    for block, count in segment.blocks:
        part = block_params(model, block)
        dense = dense + count * (part.sharded / layouts.tp + part.replicated)
        expert = expert + count * part.expert / (layouts.ep * layouts.etp)
    return dense, expert


def largest_matrix_share(model: ModelSpec) -> float:
    """Share of a layer's parameters that its largest matrix holds.

    Formula:  max(hidden * ffn, experts * hidden * expert width, heads * head_dim * hidden) /
              parameters of the mean layer, at most 1
    Units:    a share.
    Source:   experts of one layer are one tensor in software that groups them.
    Valid:    any ModelSpec.
    Checked:  tests/cost/test_weights.py
    """
    moe = model.moe
    experts = (
        moe.num_experts * (moe.latent_dim or model.hidden) * moe.expert_ffn
        if moe is not None
        else 0
    )
    dense = model.hidden * (
        model.ffn
        if any(block.kind == "mlp" for s in model.segments for block, _ in s.blocks)
        else 0
    )
    largest = max(dense, experts, model.num_heads * model.head_dim * model.hidden)
    return min(1.0, largest * model.total_layers / model_params(model).layers)


def stage_params(model: ModelSpec, stack: Stack, layouts: Layouts, stages: Stages) -> StageParams:
    """Parameters of one rank, by stage.

    Formula:  layers * layer's share + embedding (first stage) + head and last norms (last stage; a
              tied head is a second copy where pp > 1) + multi-token prediction, with a copy of the
              embedding where the stage has none
    Units:    parameters, float64, (N, S).
    Source:   Megatron-LM (arXiv:1909.08053); vocabulary padded as the stack pads it;
              Megatron-Core's gpt_model.py builds an embedding for `mtp_process` too.
    Valid:    any layout of the model.
    Checked:  tests/cost/test_weights.py
    """
    dense, expert = np.zeros(stages.layers.shape), np.zeros(stages.layers.shape)
    for segment, count in zip(model.priced_segments, segment_layers(model, stages), strict=True):
        dense_layer, expert_layer = layer_params(model, segment, layouts)
        dense, expert = dense + dense_layer[:, None] * count, expert + expert_layer[:, None] * count
    tp = layouts.tp[:, None]
    table = (
        padded_vocab(model.vocab, layouts.tp.astype(np.float64), stack.vocab_multiple)[:, None]
        * model.hidden
        / tp
    )
    dense = dense + stages.first * (table + model_params(model).positions)
    separate = np.where(model.tied, (layouts.pp[:, None] > 1) & ~stages.first, True)
    other_head = head_params(model) - (0 if model.tied else model.vocab * model.hidden)
    norm = norm_params(model)
    last_norms = norm * (2 if model.family == "encoder-decoder" else 1)
    dense = dense + stages.last * (separate * table + other_head / tp + last_norms)
    copied = (
        stages.mtp
        & (layouts.pp[:, None] > 1)
        & ~stages.first
        & ~(stages.last & model.tied)
        & (model.mtp_layers > 0)
    )
    dense = (
        dense
        + stages.mtp * model.mtp_layers * (3 * norm + 2 * model.hidden**2 / tp)
        + copied * table
    )
    return StageParams(
        dense=dense,
        expert=expert,
        ends=stages.first * table + stages.last * separate * table + copied * table,
    )


_SWITCH_BOARD = 8
"""Chips of the smallest domain with a switch that reduces; smaller ones are wired to each other.
Members beyond it are not counted, neither there nor as peers: no published log shows larger
domains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Buffers:
    """What one communicator takes on each of its members, from cost/communicators.csv, where each
    row names its source."""

    pair_bytes: float
    """With two members."""
    group_bytes: float
    """With more."""
    switch_generations: frozenset[str]
    """Generations of chips whose switches reduce."""
    switch_member_bytes: float
    """There, beyond that, for each member in the domain."""
    peer_bytes: float
    """Beyond all that for each other member in the domain, where all send to all."""


@makes("memory.context")
def communicator_bytes(layouts: Layouts, *, pool: Pool, stack: Stack) -> Floats:
    """Buffers of a rank's communicators, (N, 1).

    Formula:  sum over tp, cp, ep, dp * cp and pp, those above 1, and all ranks where Megatron's
              groups or two axes stand beside them: a pair's or a group's buffers; a pair's of pp,
              since neighbours alone exchange, and all ranks of a pipeline are many, so that a stage
              holds as much whatever its number of stages; for those that reduce (tp, dp * cp, all)
              where a switch does, and more than two members share it, a share for each of them; for
              ep, where experts are exchanged by all-to-all, connections to each other member
    Units:    bytes.
    Source:   cost/communicators.csv.
    Valid:    a communicator an axis, each with its own buffers, none registered by the user; 0
              where the stack counts no context.
    Checked:  tests/cost/test_communicators.py
    """
    chip = pool.node.chip
    none = np.zeros((len(layouts), 1))
    if chip.is_processor or not stack.context_bytes:
        return none
    buffers = _buffers_of(chip)
    tp, cp, ep, pp = (
        np.asarray(axis, dtype=np.float64)
        for axis in (layouts.tp, layouts.cp, layouts.ep, layouts.pp)
    )
    replicas = np.asarray(layouts.dp * layouts.cp, dtype=np.float64)
    reducing: list[tuple[Floats, Floats | float]] = [(tp, 1.0), (replicas, tp)]
    used = np.sum([size > 1 for size in (tp, replicas, cp, ep, pp)], axis=0)
    world = np.where(pp > 1, np.maximum(_SWITCH_BOARD, tp * replicas), tp * replicas)
    reducing.append((world * ((used > 1) | (stack.family == "megatron")), 1.0))
    sizes = [*(size for size, _ in reducing), cp, ep, np.minimum(pp, 2.0)]
    total: Floats = np.sum(
        [
            np.where(size > 2, buffers.group_bytes, buffers.pair_bytes) * (size > 1)
            for size in sizes
        ],
        axis=0,
    )
    if (
        stack.in_switch_reductions
        and chip.generation in buffers.switch_generations
        and pool.node.domain_size >= _SWITCH_BOARD
    ):
        members = [
            np.clip(
                np.floor(pool.node.domain_size / stride), 1.0, np.clip(size, 1.0, _SWITCH_BOARD)
            )
            for size, stride in reducing
        ]
        total = total + buffers.switch_member_bytes * np.sum(
            [inside * (inside > 2) for inside in members], axis=0
        )
    if stack.dispatcher == "alltoall":
        etp = np.asarray(layouts.etp, dtype=np.float64)
        peers = np.clip(np.floor(pool.node.domain_size / etp), 1.0, np.minimum(ep, _SWITCH_BOARD))
        total = total + buffers.peer_bytes * (peers - 1.0)
    return np.asarray(total)[:, None]


def _buffers_of(chip: Chip) -> _Buffers:
    known = _vendors()
    return known.get(chip.vendor.lower(), known[""])


@cache
def _vendors() -> dict[str, _Buffers]:
    return {
        row["vendor"]: _Buffers(
            pair_bytes=float(row["pair_mib"]) * MIB,
            group_bytes=float(row["group_mib"]) * MIB,
            switch_generations=frozenset(row["switch_generations"].split()),
            switch_member_bytes=float(row["switch_member_mib"]) * MIB,
            peer_bytes=float(row["peer_mib"]) * MIB,
        )
        for row in package_rows("cost/communicators.csv")
    }
