"""What a Hugging Face config says beside the shape: what a training needs, and its cost does not
hang on.

The fields are those of `exports.ModelDetails`. Keys and what an absent one means: the configuration
classes of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.models._hf_config import HfConfig
from meshwright.models.spec import ModelSpec

__all__ = ["left_out", "read_details"]

_ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish", "swiglu"), "silu"),
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "geglu"), "gelu"),
    "relu": "relu",
    "relu2": "squared-relu",
}
_ACTIVATION_KEYS = "hidden_act|hidden_activation|activation_function|mlp_hidden_act"
_NORM_KEYS = (
    "rms_norm_eps|layer_norm_eps|layer_norm_epsilon|layernorm_epsilon|norm_epsilon|norm_eps"
)
_BALANCED_BY_BIAS = {"router_score": "sigmoid", "router_balance": "bias"}
_FIXED: Mapping[str, Mapping[str, str | float]] = {
    **dict.fromkeys(
        (
            "bailing_moe_v2",
            "deepseek_v3",
            "deepseek_v32",
            "dots1",
            "glm4_moe",
            "glm_moe_dsa",
            "kimi_k2",
            "minimax_m2",
        ),
        _BALANCED_BY_BIAS,
    ),
    "deepseek_v2": {"router_balance": "sequence-aux-loss"},
    "llama4_text": {"router_score": "sigmoid"},
    "gpt_oss": {"activation": "quick-gelu", "gate_offset": 1.0},
}
"""What an architecture takes where its config does not say it."""
_BASE_KEYS = "rope_theta|rotary_emb_base|rotary_base"
_MOST_BASE = 1e12
"""Mistral Small 3.1 has 1e9."""
_STRETCHED = "llama3"
_PLAIN = ("default", "none", "")


def read_details(config: HfConfig, spec: ModelSpec, *, kind: str) -> dict[str, Any]:
    """Return what the config says, by field of ModelDetails."""
    found: dict[str, Any] = {}
    if config.has(_NORM_KEYS):
        found["norm_eps"] = config.number(_NORM_KEYS, 1e-5)
    if (activation := _ACTIVATIONS.get(_word(config, _ACTIVATION_KEYS))) is not None:
        found["activation"] = activation
    if spec.positions == "rope":
        found |= _rotation(config, spec)
    if spec.moe is not None:
        found |= dict(_FIXED.get(kind, {})) | _routing(config)
    for name, keys in _OF_FAMILY.get(kind, {}).items():
        if config.has(keys):
            found[name] = config.number(keys, 0.0)
    return found


_OF_FAMILY: Mapping[str, Mapping[str, str]] = {
    "gpt_oss": {"gate_clamp": "swiglu_limit"},
    "gemma2": {
        "query_scale": "query_pre_attn_scalar",
        "score_cap": "attn_logit_softcapping",
        "logit_cap": "final_logit_softcapping",
    },
    "gemma3_text": {
        "query_scale": "query_pre_attn_scalar",
        "window_rope_base": "rope_local_base_freq",
    },
}
"""Fields of details, and their keys, that some software has words for in these architectures
alone."""


_SCALES = (
    *(
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
    ),
    *(
        "logits_scaling",
        "logit_scale",
        "scale_emb",
        "scale_depth",
        "swiglu_limit",
        "no_rope_layers",
        "attn_temperature_tuning",
    ),
)
"""Keys that change what is computed, hardly how long it takes, and that no export has a word
for."""
_TRIVIAL: tuple[Any, ...] = (None, 0, 1, False, [])


def left_out(config: HfConfig, spec: ModelSpec, *, kind: str) -> list[str]:
    """Say what no field holds: caps and scales, an activation, a stretching of the rotation,
    attention to chosen tokens alone."""
    said = []
    read = _OF_FAMILY.get(kind, {}).values()
    given = [key for key in _SCALES if key not in read and config.values.get(key) not in _TRIVIAL]
    activation = _word(config, _ACTIVATION_KEYS)
    if activation and activation not in _ACTIVATIONS:
        given.append(f"activation {activation}")
    if given:
        said.append(
            f"left out, as exports have no words and times hardly hang on them: {', '.join(given)}"
        )
    kind = _word(_scaling(config), "rope_type|type")
    if spec.positions == "rope" and kind not in (*_PLAIN, _STRETCHED):
        said.append(f"rope_scaling of type {kind} is left out: exports rotate by rope_theta alone")
    if config.has("index_topk"):
        tokens = config.count("index_topk")
        said.append(
            f"attention is priced in full: the indexer that chooses {tokens} tokens for each, and"
            " its weights, are left out"
        )
    return said


def _rotation(config: HfConfig, spec: ModelSpec) -> dict[str, Any]:
    """The base, the rotated share of a head's dims, and Llama 3.1's stretching."""
    found: dict[str, Any] = {}
    newer, scaling = _parameters(config), _scaling(config)
    for section in (config, newer):
        if section.has(_BASE_KEYS):
            found["rope_base"] = section.number(_BASE_KEYS, 10_000.0, most=_MOST_BASE)
        if section.has("partial_rotary_factor|rotary_pct"):
            found["rope_share"] = section.number("partial_rotary_factor|rotary_pct", 1.0)
    if config.has("rotary_dim") and "rope_share" not in found:
        found["rope_share"] = config.count("rotary_dim") / spec.head_dim
    if _word(scaling, "rope_type|type") == _STRETCHED:
        found["rope_scaling"] = scaling.number("factor", 8.0)
    return found


def _parameters(config: HfConfig) -> HfConfig:
    """What transformers 5 writes in place of rope_theta and rope_scaling; of models with two
    rotations, that of full attention."""
    section = config.section("rope_parameters")
    return section.section("full_attention") if section.has("full_attention") else section


def _scaling(config: HfConfig) -> HfConfig:
    return config.section("rope_scaling") if config.has("rope_scaling") else _parameters(config)


def _routing(config: HfConfig) -> dict[str, Any]:
    """How experts are chosen and balanced."""
    found: dict[str, Any] = {}
    if (score := _word(config, "scoring_func")) in ("softmax", "sigmoid"):
        found["router_score"] = score
    if config.has("topk_method"):
        biased = _word(config, "topk_method") == "noaux_tc"
        found["router_balance"] = (
            "bias"
            if biased
            else "sequence-aux-loss"
            if config.flag("seq_aux", False)
            else "aux-loss"
        )
    if config.has("router_aux_loss_coef|aux_loss_alpha"):
        found["aux_loss"] = config.number("router_aux_loss_coef|aux_loss_alpha", 1e-2, least=0.0)
    if config.number("routed_scaling_factor", 1.0) != 1.0:
        found["routed_scale"] = config.number("routed_scaling_factor", 1.0)
    if config.has("topk_group") and config.count("n_group", 1) > 1:
        found |= {
            "router_groups": config.count("n_group"),
            "router_top_groups": config.count("topk_group"),
        }
    return found


def _word(config: HfConfig, keys: str) -> str:
    """A text; what is none counts as absent, as no shape hangs on it."""
    value = next(
        (config.values[key] for key in keys.split("|") if config.values.get(key) is not None), ""
    )
    return value.lower() if isinstance(value, str) else ""
