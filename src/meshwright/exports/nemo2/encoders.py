"""T5 and BERT of NeMo 2.0: their configuration classes, read into a model."""

from __future__ import annotations

import csv
import pkgutil
from typing import Any

from meshwright.errors import ConfigError, UnknownNameError
from meshwright.exports._taken import Taken
from meshwright.exports.settings import ModelDetails
from meshwright.models.spec import ModelSpec

__all__ = ["ENCODER_DIMS", "encoder_kind", "read_encoder"]

ENCODER_DIMS = ("num_layers", "encoder_num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")
"""What a class says, and a configuration may set by hand."""
_AT = "model.config."
_POSITIONS = 512
"""`max_position_embeddings` of T5Config, `seq_length` of BertConfig."""


def encoder_kind(target: str) -> str | None:
    """Return t5 or bert for a configuration class of either, by its name; None for decoders."""
    name = target.rpartition(".")[2].lower()
    return next((kind for kind in ("bert", "t5") if kind in name), None)


def read_encoder(words: Taken, target: str, *, what: str) -> tuple[ModelSpec, ModelDetails]:
    """Return the model of a T5 or BERT configuration: dims of its class, and over them those that are set; ConfigError names what lacks.

    Defaults are those of NeMo's classes: T5's own, ungated GELU, biases, LayerNorm, learned positions, one tied embedding (T5Config),
    and BERT's the same with a head for masked words (BertConfig). Two kinds of tokens have embeddings where BERT has its binary head, or
    is Hugging Face's.
    """
    kind = encoder_kind(target)
    sizes = _sizes(words, target, kind, what)
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    huggingface = words.take(f"{_AT}bert_type", "huggingface" if "HuggingFace" in target else "megatron") == "huggingface"
    binary = words.flag(f"{_AT}bert_binary_head", huggingface)
    positions = words.take(f"{_AT}position_embedding_type", "learned_absolute")
    if positions != "learned_absolute":
        raise ConfigError(f"{what}: {_AT}position_embedding_type={positions}: T5 and BERT are read with learned_absolute")
    longest = words.count(f"{_AT}max_position_embeddings", _POSITIONS)
    dropout = words.number(f"{_AT}hidden_dropout", 0.1)
    for name in ("attention_dropout", "add_pooler", "add_lm_head", "num_tokentypes", "seq_length_dec", "kv_channels", "num_query_groups"):
        words.take(f"{_AT}{name}", None)
    spec = ModelSpec(
        name=f"imported-{kind}",
        family="encoder-decoder" if kind == "t5" else "encoder",
        num_layers=sizes["num_layers"],
        encoder_layers=sizes["encoder_num_layers"] if kind == "t5" else 0,
        hidden=hidden,
        ffn=sizes["ffn_hidden_size"],
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        vocab=words.count(f"{_AT}vocab_size", 0),
        gated=words.flag(f"{_AT}gated_linear_unit", False),
        tied=words.flag(f"{_AT}share_embeddings_and_output_weights", True),
        norm="layernorm" if words.text(f"{_AT}normalization", "LayerNorm") == "LayerNorm" else "rmsnorm",
        positions="learned",
        max_positions=max(longest, words.count(f"{_AT}seq_length", longest)),
        linear_bias=words.flag(f"{_AT}add_bias_linear", True),
        token_types=2 if kind == "bert" and (huggingface or binary) else 0,
        mlm_head=kind == "bert",
    )
    return spec, ModelDetails(activation="gelu", norm_eps=words.number(f"{_AT}layernorm_epsilon", 1e-5), dropout=dropout)


def _sizes(words: Taken, target: str, kind: str | None, what: str) -> dict[str, int]:
    name = target.rpartition(".")[2]
    known = _classes()
    found: dict[str, Any] = dict(known.get(name, {}))
    for dim in ENCODER_DIMS:
        if words.has(f"{_AT}{dim}"):
            found[dim] = words.count(f"{_AT}{dim}", 1)
    if kind == "t5" and "num_layers" in found:
        found.setdefault("encoder_num_layers", found["num_layers"])
    if "hidden_size" in found:
        found.setdefault("ffn_hidden_size", 4 * found["hidden_size"])
    wanted = [dim for dim in ENCODER_DIMS if dim != "encoder_num_layers" or kind == "t5"]
    if not found:
        raise UnknownNameError(f"configuration class of {what}", name, known, hint="; or set num_layers, hidden_size, num_attention_heads")
    for dim in wanted:
        if dim not in found:
            raise ConfigError(f"{what}: {_AT}{dim}: missing; {name} has no size of its own")
    return found


def _classes() -> dict[str, dict[str, int]]:
    """Dims by class (`presets/nemo2_encoders.csv`)."""
    table = pkgutil.get_data("meshwright", "presets/nemo2_encoders.csv")
    assert table is not None, "the package is installed without presets/nemo2_encoders.csv"
    rows = csv.DictReader(table.decode().splitlines())
    return {row["class"]: {dim: int(row[dim]) for dim in ENCODER_DIMS if row[dim]} for row in rows}
