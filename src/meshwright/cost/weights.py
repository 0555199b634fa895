"""Parameters that one rank holds, per stage, before data-parallel sharding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.ends import padded_vocab
from meshwright.cost.shapes import Floats
from meshwright.cost.stages import Stages, segment_layers
from meshwright.layout import Layouts
from meshwright.models.params import block_params, head_params, model_params, norm_params
from meshwright.models.spec import ModelSpec, Segment
from meshwright.stack import Stack

__all__ = ["StageParams", "largest_matrix_share", "layer_params", "stage_params"]


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
    separate = np.where(model.tied, layouts.pp[:, None] > 1, True)
    other_head = head_params(model) - (0 if model.tied else model.vocab * model.hidden)
    norm = norm_params(model)
    last_norms = norm * (2 if model.family == "encoder-decoder" else 1)
    dense = dense + stages.last * (separate * table + other_head / tp + last_norms)
    copied = (
        stages.mtp
        & (layouts.pp[:, None] > 1)
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
