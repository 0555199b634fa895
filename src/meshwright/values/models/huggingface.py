"""Read a model's shape from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.hf_checkpoint import checkpoint_of, context_of
from meshwright.values.models.hf_parts import HfConfig
from meshwright.values.models.hf_readers import READERS, Reader
from meshwright.values.models.hf_unread import check_layer_types, unread_keys
from meshwright.values.models.said_size import wrong_size
from meshwright.values.models.spec import ModelSpec

__all__ = ["HfReading", "from_hf_config", "hf_reading"]

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
"""Where wrappers of several media keep their language model."""
_WRAPPED_TWICE = "thinker_config"
"""Where Qwen's models that also speak keep their wrapper."""
_OTHER_MEDIA = (
    "talker_config",
    "embd_layer",
    "vision_config",
    "audio_config",
    "speech_config",
    "video_config",
    "sound_config",
)
_SAME_AS = {
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_text",
    "gemma4_unified_text": "gemma4_text",
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "llama4": "llama4_text",
    "minimax_m3_vl": "minimax_m3",
    "minimax_m3_vl_text": "minimax_m3",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
    "qwen2_5_omni_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_omni_moe_text": "qwen3_moe",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_vl_text": "qwen3",
}
"""Kinds of configs whose language model is read as another kind."""
_MAMBA_1 = "Mamba-1 layers"
_NOT_MODELLED = {
    "bamba": "layers of attention and of Mamba-2 that each have a feed-forward",
    "bailing_hybrid": "layers of lightning attention beside latent attention",
    "deepseek_ref": "compressed sparse attention, and residuals in several streams",
    "deepseek_v4": "compressed sparse attention, and residuals in several streams",
    "falcon_h1": "layers with Mamba-2 beside attention",
    "falcon_mamba": _MAMBA_1,
    "gemma3n_text": "alternating updates of four residual streams, and embeddings of each layer",
    "granitemoehybrid": "layers of attention and of Mamba-2 that each have a feed-forward",
    "jamba": _MAMBA_1,
    "lfm2": "layers of short convolutions",
    "lfm2_moe": "layers of short convolutions",
    "longcat_flash": "two attentions a layer, and experts that do nothing",
    "mamba": _MAMBA_1,
    "mimo_v2_flash": "values narrower than keys, and other heads in layers with a window",
    "minimax": "layers of lightning attention",
    "minimax_m1": "layers of lightning attention",
    "minimax_text_01": "layers of lightning attention",
    "nemotron-nas": "layers that each have a shape of their own",
    "olmo_hybrid": "gated delta nets in layers whose norms stand elsewhere",
    "laguna": "layers that each have a number of heads of their own",
    "step3p5": "layers with a window that have other heads",
    "step3p7": "layers with a window that have other heads",
    "mllama_text_model": "layers that attend to a picture",
    "recurrent_gemma": "layers of linear recurrence",
    "zamba2": "Mamba-2 layers with one attention that they share",
}
"""What kinds hold that no field of ModelSpec has: read as their neighbours in name they would be
priced as what they are not."""
_BY_HAND = "`meshwright plan layers=32,hidden=4096,heads=32,vocab=128256`"


@dataclass(frozen=True, kw_only=True, slots=True)
class HfReading:
    """A shape and what had to be left out of it."""

    spec: ModelSpec
    notes: tuple[str, ...] = ()
    """One sentence for each thing in the config that neither holds."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the shape leaves open and a training needs: the rotary base, the epsilon of norms, the
    routing (`exports.ModelDetails`)."""


def from_hf_config(config: Mapping[str, Any], *, name: str) -> ModelSpec:
    """Return the shape that a config describes; the text part of a model of several media."""
    return hf_reading(config, name=name).spec


def hf_reading(config: Mapping[str, Any], *, name: str) -> HfReading:
    """Return the shape that a config describes, with notes on what is left out."""
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"{name}: expected a config with keys and values, got {type(config).__name__}"
        )
    outer = HfConfig(name=name, values=config)
    text = _text_part(outer)
    kind = _kind(text)
    named = replace(text, name=f"{name} (model_type {kind})")
    spec = _read(named, READERS[kind], name=name)
    if spec.delta is None and spec.hybrid is None:
        check_layer_types(named)
    details = _details(named, spec, kind=kind)
    notes = _notes(outer, text, spec)
    spec = replace(spec, context_tokens=context_of(config), checkpoint=checkpoint_of(config))
    unread = (f"{name}: {words}" for words in unread_keys(named))
    return HfReading(spec=spec, notes=(*notes, *unread), details=details)


def _text_part(outer: HfConfig) -> HfConfig:
    if outer.has(_WRAPPED_TWICE):
        return _text_part(outer.section(_WRAPPED_TWICE))
    section = next((key for key in _TEXT_SECTIONS if outer.has(key)), None)
    if section is None:
        return outer
    inner = outer.section(section).values
    shared = {"model_type", "tie_word_embeddings"} & outer.values.keys()
    return HfConfig(name=outer.name, values={**{key: outer.values[key] for key in shared}, **inner})


def _kind(text: HfConfig) -> str:
    text.require(["model_type"])
    given = text.text("model_type")
    kind = _SAME_AS.get(given, given)
    if kind in _NOT_MODELLED:
        raise ConfigError(
            f"{text.name}: a model of model_type {given} has {_NOT_MODELLED[kind]}, which are not"
            " modelled"
        )
    if kind not in READERS:
        hint = f" (in {text.name}); a model of Llama's make may be given by its dims: {_BY_HAND}"
        raise UnknownNameError("model_type of a Hugging Face config", given, READERS, hint=hint)
    return kind


def _read(config: HfConfig, reader: Reader, *, name: str) -> ModelSpec:
    layers = reader.dims["num_layers"]
    if reader.layer_list is not None and not config.has(layers):
        listed = config.items(reader.layer_list) or []
        count = {layers: len(listed)} if listed else {}
        config = config.with_values(**count)
    config.require(key for field, key in reader.dims.items() if field not in reader.assumed)
    found: dict[str, Any] = {
        field: config.count(key, reader.assumed.get(field)) for field, key in reader.dims.items()
    }
    heads = found["num_heads"]
    usual = reader.assumed.get("num_kv_heads", heads)
    found["num_kv_heads"] = config.count(reader.kv_heads, usual) if reader.kv_heads else heads
    found["head_dim"] = _head_dim(config, reader, found)
    found["tied"] = config.flag("tie_word_embeddings", reader.tied)
    found |= {field: config.flag(key, default) for field, (key, default) in reader.flags.items()}
    for part in reader.parts:
        found |= part(config, found)
    return ModelSpec(name=name, **(found | reader.fixed))


def _head_dim(config: HfConfig, reader: Reader, found: dict[str, Any]) -> int:
    """Return the given width of a head, else the architecture's, else an even share of `hidden`."""
    if reader.head_dim is not None and (
        config.has(reader.head_dim) or "head_dim" in reader.assumed
    ):
        return config.count(reader.head_dim, reader.assumed.get("head_dim"))
    hidden, heads = found["hidden"], found["num_heads"]
    if hidden % heads:
        raise ConfigError(
            f"{config.name}: {heads} heads do not divide hidden size {hidden}, and no width of a"
            " head is given"
        )
    return int(hidden // heads)


def _notes(outer: HfConfig, text: HfConfig, spec: ModelSpec) -> list[str]:
    notes = []
    media = [key for key in _OTHER_MEDIA if outer.has(key)]
    if media or text is not outer:
        what = ", ".join(media) or "the wrapper around it"
        notes.append(f"{outer.name}: only the language model is read; {what} is left out")
    full = sum(kind == "full_attention" for kind in text.items("layer_types") or [])
    taken = spec.num_layers // spec.global_every if spec.global_every else 0
    if spec.window is not None and text.has("layer_types") and full != taken:
        notes.append(
            f"{outer.name}: {full} of {spec.num_layers} layers see the whole sequence, the shape"
            f" takes {taken}"
        )
    width = text.count("word_embed_proj_dim", spec.hidden)
    if width != spec.hidden:
        notes.append(
            f"{outer.name}: the embedding of width {width} with its projections is taken as one of"
            f" width {spec.hidden}"
        )
    return [
        *notes,
        *(f"{outer.name}: {words}" for words in _left_out(text, spec, kind=_kind(text))),
        *filter(None, [wrong_size(spec)]),
    ]


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
_LIKE_DEEPSEEK_V3 = "bailing_moe_v2 deepseek_v3 deepseek_v32 dots1 glm4_moe glm_moe_dsa kimi_k2"
_FIXED: Mapping[str, Mapping[str, str | float]] = {
    **dict.fromkeys((*_LIKE_DEEPSEEK_V3.split(), "minimax_m2"), _BALANCED_BY_BIAS),
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


def _details(config: HfConfig, spec: ModelSpec, *, kind: str) -> dict[str, Any]:
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
"""Fields of details that some software has words for in these architectures alone."""


_SCALES = [
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "logit_scale",
    "scale_emb",
    "scale_depth",
    "swiglu_limit",
    "no_rope_layers",
    "attn_temperature_tuning",
]
"""Keys that change what is computed, hardly its time, and that no export has a word for."""
_TRIVIAL: tuple[Any, ...] = (None, 0, 1, False, [])


def _left_out(config: HfConfig, spec: ModelSpec, *, kind: str) -> list[str]:
    """Say what no field holds: caps and scales, an activation, a stretching of the rotation,
    attention to chosen tokens alone."""
    said = []
    read = _OF_FAMILY.get(kind, {}).values()
    given = [key for key in _SCALES if key not in read and config.given(key) not in _TRIVIAL]
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
    if config.has("attn_res_block_size"):
        said.append("attention residuals over blocks of layers are left out")
    if config.has("sparse_attention_config|index_topk_blocks"):
        said.append(
            "attention is priced in full: the indexer that chooses blocks of keys, and its weights,"
            " are left out"
        )
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
        by_loss = "sequence-aux-loss" if config.flag("seq_aux", False) else "aux-loss"
        biased = _word(config, "topk_method") == "noaux_tc"
        found["router_balance"] = "bias" if biased else by_loss
    if config.has("router_aux_loss_coef|aux_loss_alpha"):
        found["aux_loss"] = config.number("router_aux_loss_coef|aux_loss_alpha", 1e-2, least=0.0)
    if config.number("routed_scaling_factor", 1.0) != 1.0:
        found["routed_scale"] = config.number("routed_scaling_factor", 1.0)
    if config.has("topk_group") and config.count("n_group", 1) > 1:
        found["router_groups"] = config.count("n_group")
        found["router_top_groups"] = config.count("topk_group")
    return found


def _word(config: HfConfig, keys: str) -> str:
    """A text; what is none counts as absent, as no shape hangs on it."""
    given = (config.given(key) for key in keys.split("|"))
    value = next((value for value in given if value is not None), "")
    return value.lower() if isinstance(value, str) else ""
