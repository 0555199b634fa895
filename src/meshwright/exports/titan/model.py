"""Which of torchtitan's models a plan's is, and what it is built from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from meshwright.errors import CannotExpress
from meshwright.exports._tracked import plain
from meshwright.exports.plan import TrainingPlan

__all__ = ["TitanModel", "dims_line", "read_dims_line", "titan_model"]

Kind = Literal["llama3", "qwen3", "deepseek_v3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TitanModel:
    """A model of torchtitan with its dims by torchtitan's names."""

    kind: Kind
    dims: dict[str, Any]
    moe: dict[str, Any] | None
    notes: tuple[str, ...] = ()


def titan_model(plan: TrainingPlan, *, name: str) -> TitanModel:
    """Return the model: Llama for plain layers; Qwen3 for norms of queries and keys, tied weights
    or experts; else DeepSeek."""
    _require_llama_like(plan, name)
    model, details = plan.model, plan.details
    common = {
        "dim": model.hidden,
        "n_layers": model.num_layers,
        "n_heads": model.num_heads,
        "vocab_size": model.vocab,
        "norm_eps": details.norm_eps,
        "rope_theta": details.rope_base,
    }
    moe = _moe(plan, name)
    notes = () if moe is None or plain(details).router_balance in ("bias", "none") else (_BALANCE,)
    if model.mla is not None:
        return TitanModel(
            kind="deepseek_v3", dims={**common, **_latent(plan, name)}, moe=moe, notes=notes
        )
    heads = {"n_kv_heads": model.num_kv_heads, "head_dim": model.head_dim, "hidden_dim": model.ffn}
    plainly = (
        moe is None
        and not model.qk_norm
        and not model.tied
        and model.head_dim * model.num_heads == model.hidden
    )
    if plainly:
        return TitanModel(
            kind="llama3", dims={**common, **heads, "rope_scaling": details.rope_scaling}, moe=None
        )
    return TitanModel(
        kind="qwen3", dims={**common, **heads, **_qwen(plan, name)}, moe=moe, notes=notes
    )


_BALANCE = (
    "torchtitan balances experts by a bias that follows their load (load_balance_coeff), not by a"
    " loss"
)


def _require_llama_like(plan: TrainingPlan, name: str) -> None:
    """Refuse what no model of torchtitan has, each with the value that they have."""
    model, details = plan.model, plan.details
    wanted: tuple[tuple[str, Any, Any], ...] = (
        ("model.family", model.family, "decoder"),
        ("model.hybrid", model.hybrid and "mixers", None),
        ("model.gated", model.gated, True),
        ("model.norm", model.norm, "rmsnorm"),
        ("model.norms_per_layer", model.norms_per_layer, 2),
        ("model.positions", model.positions, "rope"),
        ("model.linear_bias", model.linear_bias, False),
        ("model.qkv_bias", model.qkv_bias, False),
        ("model.attention_sinks", model.attention_sinks, False),
        ("model.parallel_block", model.parallel_block, False),
        ("model.window", model.window, None),
        ("model.mtp_layers", model.mtp_layers, 0),
        ("details.activation", details.activation, "silu"),
        ("details.rope_share", details.rope_share, 1.0),
        ("details.dropout", details.dropout, 0.0),
    )
    for path, given, has in wanted:
        if given != has:
            raise CannotExpress(
                name, f"{path}={given}: its models have {has}", nearest=f"a model with {path}={has}"
            )


def _qwen(plan: TrainingPlan, name: str) -> dict[str, Any]:
    if plan.details.rope_scaling is not None:
        words = (
            f"rope_scaling={plan.details.rope_scaling:g} with norms of queries and keys, tied"
            " weights or experts: Qwen3's rotation has none"
        )
        raise CannotExpress(name, words, nearest="rope_scaling unset")
    if plan.model.moe is not None and plan.model.moe.first_dense_layers:
        words = (
            f"first_dense_layers={plan.model.moe.first_dense_layers} without latent attention:"
            " Qwen3 has experts in every layer"
        )
        raise CannotExpress(name, words, nearest="a model with first_dense_layers=0")
    return {"qk_norm": plan.model.qk_norm, "enable_weight_tying": plan.model.tied}


def _latent(plan: TrainingPlan, name: str) -> dict[str, Any]:
    model, mla, moe = plan.model, plan.model.mla, plan.model.moe
    assert mla is not None
    if moe is None:
        raise CannotExpress(
            name,
            "latent attention without experts: DeepSeek's layers behind the first have experts",
            nearest="a model with experts",
        )
    if model.tied or model.qk_norm:
        raise CannotExpress(
            name,
            f"tied={model.tied}, qk_norm={model.qk_norm} with latent attention",
            nearest="a model without either",
        )
    if plan.details.rope_scaling is not None:
        raise CannotExpress(
            name,
            f"rope_scaling={plan.details.rope_scaling:g} with latent attention",
            nearest="rope_scaling unset",
        )
    query = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if model.num_kv_heads != model.num_heads or model.head_dim not in (
        mla.v_head_dim,
        mla.qk_nope_head_dim,
        query,
    ):
        words = (
            f"num_kv_heads={model.num_kv_heads}, head_dim={model.head_dim} with latent attention:"
            " every head has its own keys and values"
        )
        raise CannotExpress(
            name, words, nearest=f"num_kv_heads={model.num_heads}, head_dim={mla.v_head_dim}"
        )
    return {
        "inter_dim": model.ffn,
        "n_dense_layers": moe.first_dense_layers,
        "q_lora_rank": mla.q_lora_rank or 0,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
    }


def _moe(plan: TrainingPlan, name: str) -> dict[str, Any] | None:
    moe, details = plan.model.moe, plan.details
    if moe is None:
        return None
    wanted: tuple[tuple[str, Any, Any], ...] = (
        ("moe.layer_frequency", moe.layer_frequency, 1),
        ("moe.capacity_factor", moe.capacity_factor, None),
        ("moe.expert_bias", moe.expert_bias, False),
        ("moe.latent_dim", moe.latent_dim, None),
    )
    for path, given, has in wanted:
        if given != has:
            raise CannotExpress(
                name,
                f"{path}={given}: its experts have {has}",
                nearest=f"a model with {path}={has}",
            )
    if moe.shared_ffn % moe.expert_ffn:
        words = (
            f"shared_ffn={moe.shared_ffn}: shared experts are as wide as routed ones"
            f" ({moe.expert_ffn}), or several of them"
        )
        raise CannotExpress(
            name,
            words,
            nearest=f"a model with shared_ffn={moe.shared_ffn // moe.expert_ffn * moe.expert_ffn}",
        )
    return {
        "num_experts": moe.num_experts,
        "num_shared_experts": moe.shared_ffn // moe.expert_ffn,
        "top_k": moe.top_k,
        "expert_ffn": moe.expert_ffn,
        "score_func": details.router_score,
        "route_norm": (
            plan.model.mla is None or details.router_score == "sigmoid"
        ),  # as Qwen3, Mixtral and DeepSeek-V3; not DeepSeek-V2
        "route_scale": details.routed_scale or 1.0,
        "num_expert_groups": details.router_groups,
        "num_limited_groups": details.router_top_groups,
        "load_balance_coeff": _balance(plan),
    }


def _balance(plan: TrainingPlan) -> float | None:
    """Return the step of the balancing bias; a loss is not read as one, so that a plan that asks
    for it is refused."""
    balance = plain(plan.details).router_balance
    if balance in ("bias", "none"):
        balance = plan.details.router_balance
    return None if balance == "none" else 1e-3


def dims_line(model: TitanModel) -> str:
    """Write the model as a comment for TOML, which has no place for dims; `read_dims_line` reads it
    back."""
    return "dims: " + json.dumps(
        {"kind": model.kind, **model.dims, **({"moe": model.moe} if model.moe is not None else {})}
    )


def read_dims_line(text: str) -> TitanModel | None:
    """Return the model of such a comment; None where a text has none."""
    match = re.search(r"^# dims: (\{.*\})$", text, re.MULTILINE)
    if match is None:
        return None
    dims = json.loads(match[1])
    kind, moe = dims.pop("kind"), dims.pop("moe", None)
    return TitanModel(kind=kind, dims=dims, moe=moe)
