"""Low-rank adapters beside frozen linear layers: how many parameters learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meshwright.values.models.params import model_params
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.workload import LoraTarget, Workload

__all__ = ["adapter_params", "trainable_share"]

_Shapes = Iterator[tuple[LoraTarget, int, int, int]]
"""Target, width of the input, width of the output, how many there are."""


def adapter_params(model: ModelSpec, work: Workload) -> float:
    """Parameters of all adapters.

    Formula:  rank * (in + out) of each linear layer that has one, over layers and experts
    Units:    parameters, float: a mean layer may have a part of a block.
    Source:   LoRA (arXiv:2106.09685), section 4.1. Queries, keys and values have one adapter
              together, as in Megatron; apart they would have two more inputs of their own.
    Valid:    any ModelSpec; prediction layers, embedding and head have none.
    Checked:  tests/values/models/test_adapters.py
    """
    total = 0.0
    for segment in model.segments:
        for block, per_layer in segment.blocks:
            sides = sum(
                count * (into + out)
                for target, into, out, count in _SHAPES[block.kind](model, block)
                if target in work.lora_targets
            )
            total += segment.num_layers * per_layer * work.lora_rank * sides
    return total


def trainable_share(model: ModelSpec, work: Workload) -> float:
    """Share of a model's parameters that learn.

    Formula:  adapters / all parameters; 1 without adapters
    Units:    a share.
    Source:   counting, `adapter_params`.
    Valid:    any ModelSpec; a rank's own share is taken to be the model's.
    Checked:  tests/values/models/test_adapters.py
    """
    return adapter_params(model, work) / model_params(model).total if work.lora_rank else 1.0


def _attention(model: ModelSpec, block: Block) -> _Shapes:
    h, heads, d = model.hidden, model.num_heads, model.head_dim
    mla = model.mla
    if mla is None:
        yield "linear_qkv", h, (heads + 2 * model.num_kv_heads) * d, 1
        yield "linear_proj", heads * d, h, 1
        return
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    yield "linear_qkv", h, mla.kv_lora_rank + mla.qk_rope_head_dim, 1
    yield "linear_qkv", mla.kv_lora_rank, heads * (mla.qk_nope_head_dim + mla.v_head_dim), 1
    if mla.q_lora_rank is None:
        yield "linear_qkv", h, query, 1
    else:
        yield "linear_qkv", h, mla.q_lora_rank, 1
        yield "linear_qkv", mla.q_lora_rank, query, 1
    yield "linear_proj", heads * mla.v_head_dim, h, 1


def _mlp(model: ModelSpec, block: Block) -> _Shapes:
    yield from _feed_forward(model, model.hidden, model.ffn, 1)


def _moe(model: ModelSpec, block: Block) -> _Shapes:
    moe = model.moe
    assert moe is not None
    width = moe.latent_dim or model.hidden
    yield from _feed_forward(model, width, moe.expert_ffn, moe.num_experts)
    if moe.shared_ffn:
        yield from _feed_forward(model, model.hidden, moe.shared_ffn, 1)


def _feed_forward(model: ModelSpec, width: int, inner: int, count: int) -> _Shapes:
    yield "linear_fc1", width, (2 if model.gated else 1) * inner, count
    yield "linear_fc2", inner, width, count


def _mamba(model: ModelSpec, block: Block) -> _Shapes:
    mamba = model.mamba
    assert mamba is not None
    inner = mamba.num_heads * mamba.head_dim
    states = 2 * mamba.num_groups * mamba.state_dim
    yield "linear_qkv", model.hidden, 2 * inner + states + mamba.num_heads, 1
    yield "linear_proj", inner, model.hidden, 1


_SHAPES: dict[str, Callable[[ModelSpec, Block], _Shapes]] = {
    "attention": _attention,
    "cross_attention": _attention,
    "mamba": _mamba,
    "mlp": _mlp,
    "moe": _moe,
}
