"""Parameters that one rank holds, per stage, before data-parallel sharding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.cost.ends import padded_vocab
from meshwright.cost.shapes import Floats
from meshwright.cost.stages import Stages
from meshwright.layout import Layouts
from meshwright.models.params import block_params, head_params, model_params
from meshwright.models.spec import ModelSpec, Segment
from meshwright.stack import Stack

__all__ = ["StageParams", "layer_params", "stage_params"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageParams:
    """Parameters of one rank of each stage, (N, S)."""

    dense: Floats
    """Split over tp where they can be; the same on every rank of the dp * cp group."""
    expert: Floats
    """Split over ep and etp; the same on every rank of the expert data-parallel group."""

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


def stage_params(model: ModelSpec, stack: Stack, layouts: Layouts, stages: Stages) -> StageParams:
    """Parameters of one rank, by stage.

    Formula:  layers * layer's share + embedding (first stage) + head (last stage; a tied head is a second copy where pp > 1)
    Units:    parameters, float64, (N, S).
    Source:   Megatron-LM (arXiv:1909.08053); vocabulary padded as the stack pads it.
    Valid:    any layout of the model.
    Checked:  tests/cost/test_weights.py
    """
    segments = model.segments
    rest = stages.layers - stages.prefix_layers
    dense, expert = (part[:, None] * rest for part in layer_params(model, segments[-1], layouts))
    if len(segments) > 1:
        head_dense, head_expert = layer_params(model, segments[0], layouts)
        dense = dense + head_dense[:, None] * stages.prefix_layers
        expert = expert + head_expert[:, None] * stages.prefix_layers
    tp, last = layouts.tp[:, None], stages.index == (layouts.pp - 1)[:, None]
    table = padded_vocab(model.vocab, layouts.tp.astype(np.float64), stack.vocab_multiple)[:, None] * model.hidden / tp
    dense = dense + stages.first * (table + model_params(model).positions)
    separate = np.where(model.tied, layouts.pp[:, None] > 1, True)
    other_head = head_params(model) - (0 if model.tied else model.vocab * model.hidden)
    dense = dense + last * (separate * table + other_head / tp + model.hidden)
    if model.mtp_layers:
        extra = model_params(model).mtp
        moe_dense, moe_expert = layer_params(model, segments[-1], layouts)
        dense = dense + last * (model.mtp_layers * moe_dense + (extra > 0) * 2 * model.hidden**2 / layouts.tp)[:, None]
        expert = expert + last * (model.mtp_layers * moe_expert)[:, None]
    return StageParams(dense=dense, expert=expert)
