"""T5 and BERT of NeMo 2.0: their configurations and data modules, and such configurations read into
a model."""

from __future__ import annotations

from typing import Any

from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Activation, ModelDetails
from meshwright.software.text import Taken
from meshwright.software.words import require
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.spec import ModelSpec

__all__ = ["ENCODER_DIMS", "encoder_data", "encoder_kind", "encoder_model", "read_encoder"]

ENCODER_DIMS = (
    "num_layers",
    "encoder_num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
)
"""What a class says, and a configuration may set by hand."""
_AT = "model.config."
_POSITIONS = 512
"""`max_position_embeddings` of T5Config, `seq_length` of BertConfig."""
_NAME = "nemo2"
_CLASSES = {
    "encoder-decoder": (
        "nemo.collections.llm.t5.model.t5.T5Model",
        "nemo.collections.llm.t5.model.t5.T5Config",
    ),
    "encoder": (
        "nemo.collections.llm.bert.model.base.BertModel",
        "nemo.collections.llm.bert.model.bert.MegatronBertConfig",
    ),
}
_DATA = {
    "encoder-decoder": (
        "nemo.collections.llm.t5.data.mock.MockDataModule",
        "nemo.collections.llm.t5.data.pre_training.PreTrainingDataModule",
    ),
    "encoder": (
        "nemo.collections.llm.bert.data.mock.BERTMockDataModule",
        "nemo.collections.llm.bert.data.pre_training.BERTPreTrainingDataModule",
    ),
}
_BERT_VOCAB = 30522
"""Of BertWordPieceLowerCase, NeMo's tokenizer where none is named; its BERT takes no other word for
the vocabulary."""


def encoder_model(plan: TrainingPlan, *, activation: str) -> dict[str, Any]:
    """Return the `model` section; CannotExpress names what NeMo 2.0's T5 or BERT can't be.

    Source: NeMo 2.5: nemo/collections/llm/t5/model/t5.py and bert/model/{base,bert}.py;
            nemo/lightning/megatron_init.py asserts that
    an encoder has no stages of its own, without which T5 takes no pipeline.
    """
    _require(plan)
    model, details = plan.model, plan.details
    words: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn,
        "num_attention_heads": model.num_heads,
        "kv_channels": model.head_dim,
        "seq_length": plan.work.seq_len,
        "gated_linear_unit": model.gated,
        "add_bias_linear": model.linear_bias,
        "share_embeddings_and_output_weights": model.tied,
        "normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[model.norm],
        "layernorm_epsilon": details.norm_eps,
        "hidden_dropout": details.dropout,
        "attention_dropout": details.dropout,
        "init_method_std": plan.settings.init_std,
        "position_embedding_type": "learned_absolute",
        "activation_func": activation,
    }
    if model.family == "encoder":
        words |= {"bert_binary_head": model.token_types == 2, "add_pooler": model.token_types == 2}
    else:
        words |= {
            "encoder_num_layers": model.encoder_layers,
            "vocab_size": model.vocab,
            "max_position_embeddings": model.max_positions,
            "seq_length_dec": _decoder_len(plan),
        }
    model_class, config_class = _CLASSES[model.family]
    return {"_target_": model_class, "config": {"_target_": config_class, **words}}


def _decoder_len(plan: TrainingPlan) -> int:
    return plan.work.decoder_seq_len or max(1, plan.work.seq_len // 4)


def _require(plan: TrainingPlan) -> None:
    model = plan.model
    wanted: dict[str, Any] = {
        "model.positions": "learned",
        "model.num_kv_heads": model.num_heads,
        "model.qkv_bias": False,
        "model.qk_norm": False,
        "model.mlm_head": model.family == "encoder",
        "model.token_types": model.token_types and 2,
        "layout.cp": 1,
        "work.lora_rank": 0,
    }
    if model.family == "encoder-decoder":
        wanted["layout.pp"] = 1
    else:
        wanted["model.max_positions"] = plan.work.seq_len
        wanted |= {} if plan.settings.tokenizer else {"model.vocab": _BERT_VOCAB}
    reason, nearest = "{path}={given}: T5 and BERT have {has} there", "{path}={has}, or --to nemo1"
    require(plan, wanted, name=_NAME, reason=reason, nearest=nearest)


def encoder_data(plan: TrainingPlan, words: dict[str, Any]) -> dict[str, Any]:
    """Return the `data` section of what a decoder's says, with this family's module."""
    module = _DATA[plan.model.family][1 if plan.settings.data else 0]
    more = {"seq_length_dec": _decoder_len(plan)} if plan.model.family == "encoder-decoder" else {}
    return {**words, "_target_": module, **more}


def encoder_kind(target: str) -> str | None:
    """Return t5 or bert for a configuration class of either, by its name; None for decoders."""
    name = target.rpartition(".")[2].lower()
    return next((kind for kind in ("bert", "t5") if kind in name), None)


_UNREAD = (
    *("attention_dropout", "add_pooler", "add_lm_head", "num_tokentypes", "seq_length_dec"),
    "num_query_groups",
)


def read_encoder(
    words: Taken, target: str, *, what: str, activation: Activation | None
) -> tuple[ModelSpec, ModelDetails]:
    """Return the model of a T5 or BERT configuration: dims of its class, and over them those that
    are set; ConfigError names what lacks.

    Defaults are those of NeMo's classes: T5's own, ungated GELU, biases, LayerNorm, learned
    positions, one tied embedding (T5Config), and BERT's the same with a head for masked words
    (BertConfig). Two kinds of tokens have embeddings where BERT has its binary head, or is Hugging
    Face's.
    """
    kind = encoder_kind(target)
    sizes = _sizes(words, target, kind, what)
    heads, hidden = sizes["num_attention_heads"], sizes["hidden_size"]
    huggingface = (
        words.take(f"{_AT}bert_type", "huggingface" if "HuggingFace" in target else "megatron")
        == "huggingface"
    )
    binary = words.flag(f"{_AT}bert_binary_head", huggingface)
    positions = words.take(f"{_AT}position_embedding_type", "learned_absolute")
    if positions != "learned_absolute":
        raise ConfigError(
            f"{what}: {_AT}position_embedding_type={positions}: T5 and BERT are read with"
            " learned_absolute"
        )
    longest = words.count(f"{_AT}max_position_embeddings", _POSITIONS)
    dropout = words.number(f"{_AT}hidden_dropout", 0.1)
    for name in _UNREAD:
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
        head_dim=words.take(f"{_AT}kv_channels", None) or hidden // heads,
        vocab=words.count(f"{_AT}vocab_size", _BERT_VOCAB if kind == "bert" else 0),
        gated=words.flag(f"{_AT}gated_linear_unit", False),
        tied=words.flag(f"{_AT}share_embeddings_and_output_weights", True),
        norm=(
            "layernorm"
            if words.text(f"{_AT}normalization", "LayerNorm") == "LayerNorm"
            else "rmsnorm"
        ),
        positions="learned",
        max_positions=longest if kind == "t5" else words.count(f"{_AT}seq_length", longest),
        linear_bias=words.flag(f"{_AT}add_bias_linear", True),
        token_types=2 if kind == "bert" and (huggingface or binary) else 0,
        mlm_head=kind == "bert",
    )
    words.take(f"{_AT}seq_length", None)
    return spec, ModelDetails(
        activation=activation or "gelu",
        norm_eps=words.number(f"{_AT}layernorm_epsilon", 1e-5),
        dropout=dropout,
    )


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
        raise UnknownNameError(
            f"configuration class of {what}",
            name,
            known,
            hint="; or set num_layers, hidden_size, num_attention_heads",
        )
    for dim in wanted:
        if dim not in found:
            raise ConfigError(f"{what}: {_AT}{dim}: missing; {name} has no size of its own")
    return found


def _classes() -> dict[str, dict[str, int]]:
    """Dims by class (`software/nemo2/nemo2_encoders.csv`)."""
    rows = package_rows("software/nemo2/nemo2_encoders.csv")
    return {row["class"]: {dim: int(row[dim]) for dim in ENCODER_DIMS if row[dim]} for row in rows}
