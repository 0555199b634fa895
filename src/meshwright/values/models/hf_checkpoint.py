"""What a Hugging Face config says of a checkpoint beside its shape: the longest sequence, and the
type of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from meshwright.values.models.spec import Checkpoint

__all__ = ["checkpoint_of", "context_of"]

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
_LONGEST = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)
"""Keys of the longest sequence, the first that is there (as vLLM's _get_and_verify_max_len)."""
_ALREADY_LONG = ("su", "longrope", "llama3", "default", "mrope", "proportional", "")
"""Ways to stretch rotations whose factor is in max_position_embeddings already."""
_MOST = 10**9


def context_of(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of the longest sequence that a model was made for; None where its config
    does not say.

    YaRN multiplies original_max_position_embeddings, other stretchings max_position_embeddings.
    """
    text = _text_part(config)
    given = (text.get(key) for key in _LONGEST)
    longest = next((value for value in given if _is_count(value)), None)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if longest is None or not isinstance(scaling, Mapping):
        return longest
    kind, factor = scaling.get("rope_type") or scaling.get("type") or "", scaling.get("factor")
    if kind in _ALREADY_LONG or not isinstance(factor, int | float) or isinstance(factor, bool):
        return longest
    if not 1 <= factor <= _MOST:
        return longest
    if kind == "yarn":
        before = scaling.get("original_max_position_embeddings")
        return int(before * factor) if _is_count(before) else longest
    return int(longest * factor)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in (*_TEXT_SECTIONS, "thinker_config"):
        if isinstance(config.get(key), Mapping):
            return _text_part(config[key])
    return config


_HALVES: Mapping[str, Checkpoint] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_MODELOPT: Mapping[str, Checkpoint] = {"FP8": "fp8", "FP8_PB_WO": "fp8-blockwise", "NVFP4": "nvfp4"}
_WHOLE_NUMBERS: Mapping[str, Checkpoint] = {"4": "int4", "8": "int8"}
_PACKED: Mapping[str, Checkpoint] = {
    "mxfp4-pack-quantized": "mxfp4",
    "nvfp4-pack-quantized": "nvfp4",
}


def checkpoint_of(config: Mapping[str, Any]) -> Checkpoint | None:
    """Return the type of a checkpoint's weights: quantization_config, else torch_dtype; None where
    neither says it, or in words that are not known."""
    text = _text_part(config)
    given = config.get("quantization_config") or text.get("quantization_config")
    if isinstance(given, Mapping) and given:
        return _quantised(given)
    keys = ("dtype", "torch_dtype")
    words = [str(part.get(key)) for part in (text, config) for key in keys]
    return next((_HALVES[word] for word in words if word in _HALVES), None)


def _quantised(given: Mapping[str, Any]) -> Checkpoint | None:
    method, bits = given.get("quant_method"), given.get("bits")
    if method == "fp8":
        return "fp8-blockwise" if given.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq"):
        return _WHOLE_NUMBERS.get(str(bits))
    if method == "compressed-tensors":
        return _compressed(given)
    return _MODELOPT.get(str(given.get("quant_algo")))


def _compressed(given: Mapping[str, Any]) -> Checkpoint | None:
    """By the first group of layers, as all of them are in published models."""
    groups = given.get("config_groups")
    group: Any = next(iter(groups.values()), {}) if isinstance(groups, Mapping) else {}
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if (packed := _PACKED.get(str(given.get("format")))) is not None:
        return packed
    if not isinstance(weights, Mapping):
        return None
    whole: Checkpoint = "fp8-blockwise" if weights.get("strategy") == "block" else "fp8"
    known: Mapping[tuple[Any, Any], Checkpoint] = {
        (8, "float"): whole,
        (8, "int"): "int8",
        (4, "int"): "int4",
    }
    return known.get((weights.get("num_bits"), weights.get("type")))
