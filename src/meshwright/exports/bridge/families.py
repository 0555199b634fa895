"""Classes of Megatron-Bridge for models whose layers its general one has no words for: Gemma 2 and
3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.errors import CannotExpress, ConfigError
from meshwright.exports._taken import Taken
from meshwright.exports.mcore.model import model_words
from meshwright.exports.plan import TrainingPlan

__all__ = ["PROVIDERS", "Provider", "bridge_model", "provider_of", "take_family"]

_NORMS = 4
"""Gemma 2 and 3 have a norm before and behind each attention and each feed-forward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """One class of `megatron.bridge.models` that builds a model."""

    name: str
    module: str
    own_activation: bool = False
    """Whether the activation function is the class's own."""


PROVIDERS = {
    "general": Provider(name="GPTModelProvider", module="gpt_provider"),
    "latent": Provider(name="MLAModelProvider", module="mla_provider"),
    "gemma2": Provider(
        name="Gemma2ModelProvider", module="gemma.gemma2_provider", own_activation=True
    ),
    "gemma3": Provider(
        name="Gemma3ModelProvider", module="gemma.gemma3_provider", own_activation=True
    ),
}


def provider_of(model: dict[str, Any]) -> Provider:
    """Return the class that the words of a model are fields of."""
    if "interleaved_attn_pattern" in model:
        return PROVIDERS["gemma3"]
    if "query_pre_attn_scalar" in model:
        return PROVIDERS["gemma2"]
    return PROVIDERS["latent" if "multi_latent_attention" in model else "general"]


def bridge_model(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return the fields of the model's class, its activation function left out; CannotExpress where
    no class has such a model."""
    if plan.model.norms_per_layer != _NORMS:
        return model_words(plan, name=name, sinks=True)
    _require_gemma(plan, name)
    words = model_words(plan, name=name, norms=_NORMS)
    del words["window_attn_skip_freq"]
    return words | (_gemma3(plan) if plan.model.qk_norm else _gemma2(plan))


def _gemma2(plan: TrainingPlan) -> dict[str, Any]:
    """Layers with and without a window take turns in the class, the first has one."""
    details = plan.details
    return {
        "query_pre_attn_scalar": _whole(details.query_scale or plan.model.head_dim),
        "attn_logit_softcapping": details.score_cap or 0.0,
        "final_logit_softcapping": details.logit_cap or 0.0,
    }


def _gemma3(plan: TrainingPlan) -> dict[str, Any]:
    model, details = plan.model, plan.details
    base = details.rope_base
    assert base is not None, "details are complete"
    return {
        "window_size": model.window,
        "interleaved_attn_pattern": [model.global_every - 1, 1],
        "rotary_base": [_whole(details.window_rope_base or base), _whole(base)],
        "softmax_scale": (details.query_scale or model.head_dim) ** -0.5,
    }


def _whole(value: float) -> float:
    """Write a whole number as one."""
    return int(value) if value == int(value) else value


def _require_gemma(plan: TrainingPlan, name: str) -> None:
    model, details, layout = plan.model, plan.details, plan.layout
    first = not model.qk_norm
    wanted: tuple[tuple[str, Any, Any], ...] = (
        ("model.gated", model.gated, True),
        ("details.activation", details.activation, "gelu"),
        ("model.norm", model.norm, "rmsnorm"),
        ("model.tied", model.tied, True),
        ("model.linear_bias", model.linear_bias, False),
        ("model.qkv_bias", model.qkv_bias, False),
        ("model.positions", model.positions, "rope"),
        ("model.mla", model.mla and "latent attention", None),
        ("model.moe", model.moe and "experts", None),
        ("model.window", model.window is not None, True),
        ("model.global_every", model.global_every, 2 if first else max(2, model.global_every)),
        ("details.rope_scaling", details.rope_scaling, None),
        ("details.score_cap", details.score_cap, details.score_cap if first else None),
        ("details.logit_cap", details.logit_cap, details.logit_cap if first else None),
        (
            "details.window_rope_base",
            details.window_rope_base,
            None if first else details.window_rope_base,
        ),
    )
    for path, given, has in wanted:
        if given != has:
            reason = (
                f"{path}={given} with norms_per_layer={_NORMS}: its Gemma {'2' if first else '3'}"
                f" has {has}"
            )
            raise CannotExpress(name, reason, nearest=f"a model with {path}={has}")
    if first and layout.cp > 1:
        raise CannotExpress(
            name,
            f"cp={layout.cp}: its attention of Gemma 2 refuses context parallelism",
            nearest="cp=1",
        )


def take_family(words: Taken) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put the words of a Gemma's class into those of the general one; return what the model and its
    details have beside them."""
    if words.has("model.interleaved_attn_pattern"):
        return {"norms_per_layer": _NORMS}, _take_gemma3(words)
    if words.has("model.query_pre_attn_scalar"):
        words.put("model.window_attn_skip_freq", 2)
        caps = {
            name: words.number(f"model.{name}_logit_softcapping", 0.0) or None
            for name in ("attn", "final")
        }
        scale = words.number("model.query_pre_attn_scalar", 0.0)
        return {"norms_per_layer": _NORMS}, {
            "query_scale": scale,
            "score_cap": caps["attn"],
            "logit_cap": caps["final"],
        }
    return {}, {}


def _take_gemma3(words: Taken) -> dict[str, Any]:
    pattern, bases = (
        words.take("model.interleaved_attn_pattern", None),
        words.take("model.rotary_base", [10_000, 1_000_000]),
    )
    try:
        (local, behind), (window_base, base) = pattern, bases
        words.put("model.window_attn_skip_freq", local + behind)
        words.put("model.window_size", [words.count("model.window_size", 512) - 1, 0])
    except (TypeError, ValueError):
        behind = 0
    if behind != 1:
        words_given = f"model.interleaved_attn_pattern={pattern}, model.rotary_base={bases}"
        raise ConfigError(
            f"{words_given}: expected layers with a window before one without, [5, 1], and the"
            " bases of both"
        )
    words.put("model.rotary_base", base)
    return {
        "window_rope_base": window_base,
        "query_scale": round(words.number("model.softmax_scale", 256**-0.5) ** -2, 6),
    }
