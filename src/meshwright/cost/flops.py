"""Model FLOPs: what MFU counts."""

from __future__ import annotations

from typing import Literal

from meshwright.values.models.params import block_params
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.workload import Workload

__all__ = [
    "causal_flops_per_token",
    "mfu",
    "model_flops_per_sequence",
    "model_flops_per_token",
    "tokens_per_s",
]

Masking = Literal["full", "causal"]


def model_flops_per_token(model: ModelSpec, work: Workload) -> float:
    """Model FLOPs per token, forward and backward, causal masking not discounted.

    Formula:  6 * parameters of matrix products that the token visits + 6 * layers * heads * (qk
              width + value width) * keys (2 FLOP per multiply-add, 3 for forward and backward)
    Units:    FLOP per token of `seq_len`, float64.
    Source:   PaLM, arXiv:2204.02311, appendix B; Megatron-LM, arXiv:2104.04473, equation 3.
    Valid:    full attention over a sequence, or its window; recompute, embedding look-up, norms and
              optimizer not counted.
    Checked:  tests/cost/test_flops.py
    """
    return model_flops_per_sequence(model, work, masking="full") / work.seq_len


def causal_flops_per_token(model: ModelSpec, work: Workload) -> float:
    """Model FLOPs per token with the masked half of causal attention left out.

    Formula:  as model_flops_per_token, with half the keys in causal layers
    Units:    FLOP per token of `seq_len`, float64.
    Source:   Megatron-Bridge and newer Megatron-LM count so.
    Valid:    as model_flops_per_token.
    Checked:  tests/cost/test_flops.py
    """
    return model_flops_per_sequence(model, work, masking="causal") / work.seq_len


def tokens_per_s(*, gbs: float, seq_len: int, step_s: float, num_chips: int = 1) -> float:
    """Tokens that one chip of so many trains on each second; all chips' together by default.

    Formula:  gbs * seq_len / step_s / num_chips
    Units:    tokens per second.
    Source:   definition.
    Valid:    an encoder-decoder model counts its encoder's `seq_len`.
    Checked:  tests/cost/test_flops.py::test_mfu_by_hand
    """
    return gbs * seq_len / step_s / num_chips


def mfu(tokens_per_s: float, flops_per_token: float, peak_flops_per_s: float) -> float:
    """Model FLOPs utilisation: the share of the peak that the model's own arithmetic takes.

    Formula:  tokens_per_s * flops_per_token / peak_flops_per_s
    Units:    share.
    Source:   PaLM, arXiv:2204.02311, appendix B; the peak is the dense one of the precision that
              linear layers run in (`Chip.peak_flops_per_s`), of one chip where the tokens are one
              chip's.
    Valid:    full or causal FLOPs per token; recompute is not counted.
    Checked:  tests/cost/test_flops.py::test_mfu_by_hand
    """
    return tokens_per_s * flops_per_token / peak_flops_per_s


def model_flops_per_sequence(model: ModelSpec, work: Workload, *, masking: Masking) -> float:
    """Model FLOPs of one sequence, forward and backward; encoder-decoder models take their
    decoder's sequence along.

    Formula:  sum over blocks of tokens * (6 * active weights + 6 * heads * widths * keys), and 6 *
              tokens * hidden * vocab for the head
    Units:    FLOP, float64.
    Source:   as model_flops_per_token.
    Valid:    as model_flops_per_token.
    Checked:  tests/cost/test_flops.py
    """
    total = 0.0
    for segment in model.segments:
        for block, count in segment.blocks:
            tokens = float(_tokens(model, block, work))
            weights = tokens * 6.0 * _active_weights(model, block) + _encoder_side(
                model, block, work
            )
            total += (
                segment.num_layers
                * count
                * (weights + tokens * _scores_flops(model, block, work, masking))
            )
    head_tokens = _tokens(model, Block(kind="mlp", stream="decoder"), work)
    heads = 1 + model.mtp_layers
    total += heads * 6.0 * head_tokens * model.hidden * model.vocab
    if model.mtp_segment is not None:
        layer = sum(
            count
            * (6.0 * _active_weights(model, block) + _scores_flops(model, block, work, masking))
            for block, count in model.mtp_segment.blocks
        )
        total += model.mtp_layers * work.seq_len * (layer + 12.0 * model.hidden**2)
    return total


def _tokens(model: ModelSpec, block: Block, work: Workload) -> int:
    if model.family == "encoder-decoder" and block.stream == "decoder":
        return (
            work.decoder_seq_len if work.decoder_seq_len is not None else max(1, work.seq_len // 4)
        )
    return work.seq_len


def _encoder_side(model: ModelSpec, block: Block, work: Workload) -> float:
    """FLOPs that cross attention's keys and values take beyond those of as many decoder tokens:
    they are made of encoder tokens.

    Formula:  6 * (encoder tokens - decoder tokens) * 2 * hidden * kv_heads * head_dim; 0 but for
              cross attention
    Units:    FLOP per sequence.
    Source:   counting: keys and values, 2 FLOP a multiply-add, 3 for forward and backward.
    """
    if block.kind != "cross_attention":
        return 0.0
    more_tokens = work.seq_len - _tokens(model, block, work)
    return 6.0 * more_tokens * 2.0 * model.hidden * model.num_kv_heads * model.head_dim


def _active_weights(model: ModelSpec, block: Block) -> float:
    """Weights of a block's matrix products that one token visits; biases and head norms (under 0.1
    %) are counted with them.

    Formula:  sharded + replicated - norms + expert * top_k / num_experts
    Units:    parameters.
    Source:   counting, as Megatron-LM (arXiv:2104.04473) does; a token visits top_k of the experts.
    """
    part = block_params(model, block)
    if block.kind != "moe":
        return float(part.sharded + part.replicated - _small(model))
    moe = model.moe
    assert moe is not None
    return (
        part.sharded + part.replicated - _small(model) + part.expert * moe.top_k / moe.num_experts
    )


def _small(model: ModelSpec) -> float:
    """Norm scales and shifts, which are no matrix products."""
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def _scores_flops(model: ModelSpec, block: Block, work: Workload, masking: Masking) -> float:
    """FLOPs of one token that depend on no weights: attention's scores and values, or a mixer's
    states.

    Formula:  6 * heads * (qk + value) * keys, of a window or, where masking counts, half the keys;
              mixer: 6 * 2 * heads * head_dim * state_dim; delta attention: 6 * 3 * value heads *
              key_dim * value_dim; else 0
    Units:    FLOP per token, forward and backward.
    Source:   PaLM (arXiv:2204.02311), appendix B; mixer: counting in Mamba-2's recurrence
              (arXiv:2405.21060): a state is updated and read, head_dim * state_dim multiply-adds
              each; delta rule (arXiv:2412.06464, equation 10): read by the key, updated, read by
              the query.
    """
    model = model.at(block)
    if block.kind == "delta":
        delta = model.delta
        assert delta is not None
        return 6.0 * 3.0 * delta.num_value_heads * delta.key_dim * delta.value_dim
    if block.kind == "mamba":
        mamba = model.mamba
        assert mamba is not None
        return 6.0 * 2.0 * mamba.num_heads * mamba.head_dim * mamba.state_dim
    if "attention" not in block.kind:
        return 0.0
    keys = float(work.seq_len if block.kind == "cross_attention" else _tokens(model, block, work))
    if block.window is not None and block.window < keys:
        keys = float(block.window)
    elif block.causal and masking == "causal":
        keys /= 2.0
    mla = model.mla
    widths = (
        2 * model.head_dim
        if mla is None
        else mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
    )
    return 6.0 * model.num_heads * widths * keys
