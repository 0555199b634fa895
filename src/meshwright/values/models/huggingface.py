"""Read a model's shape from a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.hf_config import HfConfig
from meshwright.values.models.hf_parts import left_out, read_details
from meshwright.values.models.hf_readers import READERS, Reader
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "HfReading",
    "from_hf_config",
    "hf_reading",
]

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
    "glm4v_moe_text": "glm4_moe",
    "glm4v_text": "glm4",
    "llama4": "llama4_text",
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
    "falcon_h1": "layers with Mamba-2 beside attention",
    "falcon_mamba": _MAMBA_1,
    "gemma3n_text": "alternating updates of four residual streams, and embeddings of each layer",
    "granitemoehybrid": "layers of attention and of Mamba-2 that each have a feed-forward",
    "jamba": _MAMBA_1,
    "kimi_linear": "layers of Kimi delta attention",
    "lfm2": "layers of short convolutions",
    "lfm2_moe": "layers of short convolutions",
    "longcat_flash": "two attentions a layer, and experts that do nothing",
    "mamba": _MAMBA_1,
    "minimax": "layers of lightning attention",
    "minimax_m1": "layers of lightning attention",
    "minimax_text_01": "layers of lightning attention",
    "mllama_text_model": "layers that attend to a picture",
    "qwen3_5_moe_text": "layers of gated delta nets",
    "qwen3_5_text": "layers of gated delta nets",
    "qwen3_next": "layers of gated delta nets",
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
    named = HfConfig(name=f"{name} (model_type {kind})", values=text.values)
    spec = _read(named, READERS[kind], name=name)
    return HfReading(
        spec=spec,
        notes=tuple(_notes(outer, text, spec)),
        details=read_details(named, spec, kind=kind),
    )


def _text_part(outer: HfConfig) -> HfConfig:
    if outer.has(_WRAPPED_TWICE):
        return _text_part(outer.section(_WRAPPED_TWICE))
    section = next((key for key in _TEXT_SECTIONS if outer.has(key)), None)
    if section is None:
        return outer
    inner = outer.section(section).values
    shared = {
        key: outer.values[key]
        for key in ("model_type", "tie_word_embeddings")
        if key in outer.values
    }
    return HfConfig(name=outer.name, values={**shared, **inner})


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
    config.require(key for field, key in reader.dims.items() if field not in reader.assumed)
    found: dict[str, Any] = {
        field: config.count(key, reader.assumed.get(field)) for field, key in reader.dims.items()
    }
    found["num_kv_heads"] = (
        config.count(reader.kv_heads, reader.assumed.get("num_kv_heads", found["num_heads"]))
        if reader.kv_heads
        else found["num_heads"]
    )
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
    return [*notes, *(f"{outer.name}: {words}" for words in left_out(text, spec, kind=_kind(text)))]
