"""The `model` section of NeMo 1.x for T5, mT5 and BERT."""

from __future__ import annotations

from typing import Any

from meshwright.software.plan import TrainingPlan
from meshwright.software.words import require
from meshwright.values.errors import CannotExpress

__all__ = ["bert_model", "require_bert", "require_t5", "t5_model"]

_NAME = "nemo1"
_ACTIVATIONS = {
    (True, "gelu"): "geglu",
    (True, "silu"): "swiglu",
    (True, "relu"): "reglu",
    (False, "gelu"): "gelu",
    (False, "relu"): "relu",
}
_POSITIONS = {"learned": "learned_absolute", "relative": "relative"}


_THERE = "{path}={given}: NeMo 1.x has {has} there"


def require_t5(plan: TrainingPlan) -> None:
    """Refuse what NeMo 1.x's T5 can't be; CannotExpress names the nearest plan."""
    model, layout = plan.model, plan.layout
    wanted = {
        "model.num_kv_heads": model.num_heads,
        "model.encoder_layers": model.num_layers,
        "model.tied": True,
        "model.qkv_bias": False,
        "model.qk_norm": False,
        "layout.cp": 1,
        "layout.vpp": 1,
    }
    require(plan, wanted, name=_NAME, reason=_THERE, nearest="{field}={has}")
    if model.positions not in _POSITIONS:
        reason = f"model.positions={model.positions}: its T5 has {', '.join(_POSITIONS)}"
        raise CannotExpress(_NAME, reason, nearest="model.positions=learned")
    if (model.gated, plan.details.activation) not in _ACTIVATIONS:
        reason = (
            f"activation={plan.details.activation} with gated={model.gated}: its T5 has"
            f" {', '.join(_ACTIVATIONS.values())}"
        )
        raise CannotExpress(_NAME, reason, nearest="details.activation=gelu")
    if layout.pp % 2 and layout.pp > 1:
        halves = "the encoder takes the first half of the stages, the decoder the second"
        raise CannotExpress(_NAME, f"pp={layout.pp}: {halves}", nearest=f"pp={layout.pp - 1}")


def require_bert(plan: TrainingPlan) -> None:
    """Refuse what NeMo 1.x's BERT can't be; CannotExpress names the nearest plan."""
    wanted = {
        "model.num_kv_heads": plan.model.num_heads,
        "model.gated": False,
        "details.activation": "gelu",
        "model.tied": True,
        "model.positions": "learned",
        "model.linear_bias": True,
        "model.norm": "layernorm",
        "model.mlm_head": True,
        "model.token_types": 2,
        "layout.cp": 1,
    }
    require(plan, wanted, name=_NAME, reason=_THERE, nearest="{field}={has}")


def _dims(plan: TrainingPlan) -> dict[str, Any]:
    """What both families call by the same names."""
    model, details = plan.model, plan.details
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.num_heads,
        "kv_channels": model.head_dim,
        "init_method_std": plan.settings.init_std,
        "hidden_dropout": details.dropout,
        "attention_dropout": details.dropout,
    }


def t5_model(plan: TrainingPlan, *, recompute: dict[str, Any]) -> dict[str, Any]:
    """Return the words of T5's and mT5's architecture and data; encoder and decoder are alike but
    for the causal mask."""
    model, details = plan.model, plan.details
    assert details.activation is not None
    side = {
        **_dims(plan),
        "position_embedding_type": _POSITIONS[model.positions],
        "layernorm_epsilon": details.norm_eps,
        "bias": model.linear_bias,
        "normalization": model.norm,
        "arch": "transformer",
        "activation": _ACTIVATIONS[model.gated, details.activation],
        **recompute,
    }
    return {
        "pipeline_model_parallel_split_rank": plan.layout.pp // 2 if plan.layout.pp > 1 else 0,
        "seq_length": plan.work.seq_len,
        "max_position_embeddings": model.max_positions or plan.work.seq_len,
        "encoder": side,
        "decoder": dict(side),
        "share_token_embeddings": True,
        "share_decoder_tokens_head_embeddings": True,
        "data": {
            "seq_length": plan.work.seq_len,
            "seq_length_dec": plan.work.decoder_seq_len or plan.work.seq_len // 4,
            "dataset_type": "t5",
            "masked_lm_prob": 0.15,
            "short_seq_prob": 0.0,
            "whole_word_masking": True,
            "max_ngram_size": 10,
            "geometric_dist": True,
        },
    }


def bert_model(plan: TrainingPlan, *, recompute: dict[str, Any]) -> dict[str, Any]:
    """Return the words of BERT's architecture and data."""
    model, details = plan.model, plan.details
    return {
        "mcore_bert": True,
        "virtual_pipeline_model_parallel_size": plan.layout.vpp if plan.layout.vpp > 1 else None,
        "encoder_seq_length": plan.work.seq_len,
        "max_position_embeddings": model.max_positions or plan.work.seq_len,
        **_dims(plan),
        "layernorm_epsilon": details.norm_eps,
        "bert_binary_head": True,
        **recompute,
        "data": {"masked_lm_prob": 0.15, "short_seq_prob": 0.1},
    }
