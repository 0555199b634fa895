"""A `training/*.yaml` of the NeMo 1.x launcher read back into a model, a workload and a layout."""

from __future__ import annotations

import re
from typing import Any

from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.megatron_core.model import read_model
from meshwright.software.mending import like_export
from meshwright.software.nemo1.export import ACTIVATIONS, NAME, NEMO1, NULL_VOCABULARY, WORDS
from meshwright.software.nemo1.training import LINEAR
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import DecayStyle, TrainingSettings
from meshwright.software.text import Taken
from meshwright.software.words import blend, shares
from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_model
from meshwright.values.text import read_yaml
from meshwright.values.workload import Precision, Workload

__all__ = ["NEMO1_SOURCE"]

_GPT2_VOCABULARY = 50257
_VOCABULARIES = {"megatron": _GPT2_VOCABULARY, "sentencepiece": 32000}
"""Where the file leaves it to the tokenizer: GPT-2's, and Llama 2's."""
_PRECISIONS: dict[str, Precision] = {
    "bf16": "bf16",
    "bf16-mixed": "bf16",
    "16": "fp16",
    "16-mixed": "fp16",
    "32": "fp32",
    "32-true": "fp32",
}


def _read(text: str) -> Imported:
    words = Taken(_resolved(read_yaml(text, what=NAME)), what=NAME)
    warnings: list[str] = []
    _rename(words, warnings)
    model, details = read_model(
        words, prefix="model.", what=NAME, activation=words.take("activation", None)
    )
    tp = words.count("model.tensor_model_parallel_size", 1)
    name = words.text("model.optim.name", "distributed_fused_adam")
    layout: dict[str, Any] = {
        "tp": tp,
        "sp": words.flag("model.sequence_parallel", False) and tp > 1,
        "cp": words.take("model.context_parallel_size", None) or 1,
        "pp": words.count("model.pipeline_model_parallel_size", 1),
        "vpp": words.take("model.virtual_pipeline_model_parallel_size", None) or 1,
        "ep": words.take("model.expert_model_parallel_size", None) or 1,
        "mbs": words.count("model.micro_batch_size", 1),
        "sharding": "zero1" if "distributed" in name else "none",
        **_recompute(words),
    }
    work = Workload(
        seq_len=words.count("model.data.seq_length", 2048),
        gbs=words.count("model.global_batch_size", 1),
        precision=_precision(words),
        dropout=bool(details.dropout),
    )
    chips = words.count("trainer.num_nodes", 1) * words.count("trainer.devices", 1)
    settings = _settings(words)
    words.drop_under(_FIXED)
    return Imported(
        source=NAME,
        model=model,
        work=work,
        layout=layout,
        stack="megatron",
        settings=settings,
        details=details,
        num_chips=chips,
        warnings=tuple(warnings),
        passed_through=tuple(
            f"training.{path}={'null' if value is None else value}"
            for path, value in words.left().items()
        ),
    )


def _resolved(values: dict[str, Any]) -> dict[str, Any]:
    """Fill in the few interpolations that matter: multiples of a neighbour, and a neighbour's
    value."""
    model = values.get("model")
    if not isinstance(model, dict):
        raise ConfigError(f"{NAME}: model: expected the section of a GPT model")
    if "encoder" in model:
        raise ConfigError(
            f"{NAME}: model.encoder: T5 is read from Megatron-LM's flags; here only GPT models are"
        )
    found = dict(model)
    data = model.get("data")
    if isinstance(data, dict):
        found["data"] = {key: _of_model(value, model) for key, value in data.items()}
    for key, value in model.items():
        if not isinstance(value, str):
            continue
        product = re.fullmatch(r"\$\{multiply:(\d{1,3}), ?\$\{\.(\w+)\}\}", value)
        same = re.fullmatch(r"\$\{\.(\w+)\}", value)
        if product and isinstance(model.get(product[2]), int):
            found[key] = int(product[1]) * model[product[2]]
        elif same and same[1] in model:
            found[key] = model[same[1]]
    return {**values, "model": found}


def _of_model(value: Any, model: dict[str, Any]) -> Any:
    """Return the model's value where a text points to it,
    `${training.model.encoder_seq_length}`."""
    match = (
        re.fullmatch(r"\$\{(?:training\.)?model\.(\w+)\}", value)
        if isinstance(value, str)
        else None
    )
    return model.get(match[1], value) if match is not None else value


def _rename(words: Taken, warnings: list[str]) -> None:
    """Give fields the names of Megatron-Core, with NeMo's defaults."""
    activation = words.text("model.activation", "gelu").lower()
    known = {name: key for key, name in ACTIVATIONS.items()} | {
        "swiglu": (True, "silu"),
        "geglu": (True, "gelu"),
        "reglu": (True, "relu"),
    }
    if activation not in known:
        raise ConfigError(f"{NAME}: model.activation={activation}: expected {', '.join(known)}")
    gated, name = known[activation]
    words.put("model.gated_linear_unit", gated)
    words.put("activation", name)
    words.put("model.add_bias_linear", words.flag("model.bias", True))
    words.put("model.add_qkv_bias", words.flag("model.qkv_bias", False))
    words.put("model.rotary_percent", words.take("model.rotary_percentage", 1.0))
    norm = words.text("model.normalization", "layernorm")
    words.put("model.normalization", "RMSNorm" if norm == "rmsnorm" else "LayerNorm")
    words.put("model.seq_length", words.take("model.encoder_seq_length", 2048))
    library = words.take("model.tokenizer.library", "megatron")
    words.put("library", library)
    vocab = words.take(f"model.{NULL_VOCABULARY}", None)
    if vocab is None:
        name = words.peek("model.tokenizer.type")
        vocab = _vocabulary(library, name)
        if vocab is None:
            raise ConfigError(
                f"{NAME}: the vocabulary of tokenizer {library} {name} is not known; add"
                f" model.{NULL_VOCABULARY}: 128256"
            )
        warnings.append(
            f"the vocabulary is taken as {vocab}, by the tokenizer"
            f" {' '.join(filter(None, (library, name)))}"
        )
    words.put("model.vocab_size", vocab)
    if words.has("model.num_moe_experts"):
        words.put("model.moe_ffn_hidden_size", words.peek("model.ffn_hidden_size"))


def _vocabulary(library: Any, name: Any) -> int | None:
    """Return the vocabulary of a model that a tokenizer is called after, else that of the library's
    usual file."""
    if library == "huggingface" and isinstance(name, str):
        try:
            return find_model(name.rpartition("/")[2]).vocab
        except ConfigError:
            return None
    return _VOCABULARIES.get(library)


def _recompute(words: Taken) -> dict[str, Any]:
    at = "model.activations_checkpoint_"
    granularity = words.take(f"{at}granularity", None)
    method, layers = words.take(f"{at}method", None), words.take(f"{at}num_layers", None)
    if granularity == "full" and not (method == "block" and not layers):
        return {
            "recompute": "full",
            "recompute_method": method or "uniform",
            "recompute_layers": layers,
        }
    if granularity == "selective":
        return {"recompute": "selective", "recompute_modules": ("core_attn",)}
    return {"recompute": "none"}


def _precision(words: Taken) -> Precision:
    given = str(words.take("trainer.precision", "bf16"))
    fp8 = words.flag("model.fp8", False)
    if given not in _PRECISIONS:
        raise ConfigError(f"{NAME}: trainer.precision={given}: expected {', '.join(_PRECISIONS)}")
    return "fp8" if fp8 else _PRECISIONS[given]


_SCHEDULES: dict[Any, DecayStyle] = {LINEAR: "linear"}


def _settings(words: Taken) -> TrainingSettings:
    given = WORDS.read(words, "settings")
    rate, schedule = given["learning_rate"], words.peek("model.optim.sched.name")
    least = words.number("model.optim.sched.min_lr", rate / 10)
    betas = words.take("model.optim.betas", None) or [0.9, 0.95]
    saves = words.flag("exp_manager.create_checkpoint_callback", True)
    folder = words.take("exp_manager.explicit_log_dir", None)
    steps = words.number("trainer.limit_val_batches", 0)
    interval = words.take("trainer.val_check_interval", None)
    if steps and given["save_interval"] is None:
        given["save_interval"] = interval  # behind each validation
    try:
        beta1, beta2 = (float(beta) for beta in betas)
    except (TypeError, ValueError):
        raise ConfigError(f"{NAME}: model.optim.betas={betas}: expected two numbers") from None
    return TrainingSettings(
        **given,
        min_learning_rate=None if least == rate else least,
        decay_style="constant" if least == rate else _SCHEDULES.get(schedule, "cosine"),
        adam_beta1=beta1,
        adam_beta2=beta2,
        save_dir=folder if saves and folder and "${" not in folder else None,
        eval_steps=int(steps),
        eval_interval=interval if steps else None,
        **_data(words),
        **_tokenizer(words),
    )


def _tokenizer(words: Taken) -> dict[str, Any]:
    library, at = words.take("library", "megatron"), "model.tokenizer."
    kind, model = words.take(f"{at}type", None), words.take(f"{at}model", None)
    files = {
        name: value
        for name in ("vocab_file", "merge_file")
        if (value := words.take(f"{at}{name}", None)) and "${" not in value
    }
    if library in ("huggingface", "sentencepiece"):
        name = kind if library == "huggingface" else model
        return {"tokenizer_kind": library, "tokenizer": name}
    return {"tokenizer_kind": "gpt2-bpe" if files else None, **files}


def _data(words: Taken) -> dict[str, Any]:
    prefix = words.take("model.data.data_prefix", None) or []
    split = words.take("model.data.splits_string", None)
    try:
        given = [prefix] if isinstance(prefix, str) else list(prefix)
        return {"data": blend(given), "split": shares(split)}
    except (TypeError, ValueError):
        raise ConfigError(
            f"{NAME}: model.data.data_prefix, splits_string: expected weights and paths in turn,"
            " and shares such as 99,1,0"
        ) from None


_FIXED_MODEL = (
    *("mcore_gpt", "rampup_batch_size", "max_position_embeddings", "make_vocab_size_divisible_by"),
    *("transformer_engine", "fp8_e4m3", "fp8_hybrid", "megatron_amp_O2", "gradient_as_bucket_view"),
    *("use_flash_attention", "ub_tp_comm_overlap", "overlap_p2p_comm", "batch_p2p_comm"),
    *("tokenizer", "optim", "data", "moe_grouped_gemm", "moe_token_dispatcher_type"),
)
_FIXED_TRAINER = (
    *("accelerator", "logger", "enable_checkpointing", "use_distributed_sampler", "max_epochs"),
    *("max_time", "limit_test_batches", "accumulate_grad_batches"),
)
_FIXED = (
    *("run", "exp_manager", "defaults", "hydra"),
    *(f"model.{name}" for name in _FIXED_MODEL),
    *(f"trainer.{name}" for name in _FIXED_TRAINER),
)
"""What says how NeMo runs, and nothing of the plan."""


def _matches(name: str, text: str) -> bool:
    return (
        name.endswith((".yaml", ".yml"))
        and "trainer:" in text
        and "tensor_model_parallel_size:" in text
        and "_target_" not in text
    )


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    del found
    return like_export(text, plan, target=NEMO1, read=_read)


NEMO1_SOURCE = ImportSource(
    name=NAME,
    title="NeMo 1.x's YAML",
    matches=_matches,
    read=_read,
    mend=_mended,
)
