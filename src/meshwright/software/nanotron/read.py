"""nanotron's YAML read back into a model, a workload and a layout."""

from __future__ import annotations

from typing import Any

from meshwright.search.rules.split import split_by_cost
from meshwright.software.contract import Imported, ImportSource
from meshwright.software.nanotron.export import NAME
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.software.text import Taken
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import read_yaml
from meshwright.values.workload import Precision, Workload

__all__ = ["NANOTRON_SOURCE"]

_PRECISIONS: dict[str, Precision] = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}


def _read(text: str) -> Imported:
    words = Taken(read_yaml(text, what=NAME), what=NAME)
    model, details = _model(words)
    layout = _layout(words, model)
    mbs, rounds = (
        words.count("tokens.micro_batch_size", 1),
        words.count("tokens.batch_accumulation_per_replica", 1),
    )
    dtype = words.text("model.dtype", "bfloat16")
    if dtype not in _PRECISIONS:
        raise ConfigError(f"{NAME}: model.dtype={dtype}: expected {', '.join(_PRECISIONS)}")
    seq_len = words.count("tokens.sequence_length", 2048)
    settings = _settings(words)
    _drop_fixed(words)
    return Imported(
        source=NAME,
        model=model,
        work=Workload(
            seq_len=seq_len, gbs=mbs * rounds * layout["dp"], precision=_PRECISIONS[dtype]
        ),
        layout=layout | {"mbs": mbs},
        stack="nanotron",
        settings=settings,
        details=details,
        num_chips=layout["dp"] * layout["tp"] * layout["pp"] * layout["cp"],
        passed_through=tuple(f"{path}={value}" for path, value in words.left().items()),
    )


def _model(words: Taken) -> tuple[ModelSpec, ModelDetails]:
    at = "model.model_config."
    if words.has(f"{at}moe_config.num_experts") or words.has(f"{at}is_starcoder2_config"):
        raise ConfigError(f"{NAME}: {at[:-1]}: dense Llama and Qwen2 models are read")
    hidden, heads = words.count(f"{at}hidden_size", 0), words.count(f"{at}num_attention_heads", 0)
    if (
        words.text(f"{at}hidden_act", "silu") != "silu"
        or words.has(f"{at}rope_scaling")
        or words.has(f"{at}sliding_window_size")
    ):
        raise ConfigError(
            f"{NAME}: {at[:-1]}: hidden_act other than silu, rope_scaling and sliding_window_size"
            " are not read"
        )
    spec = ModelSpec(
        name="nanotron-model",
        num_layers=words.count(f"{at}num_hidden_layers", 0),
        hidden=hidden,
        ffn=words.count(f"{at}intermediate_size", 0),
        num_heads=heads,
        num_kv_heads=words.take(f"{at}num_key_value_heads", None) or heads,
        head_dim=hidden // heads,
        vocab=words.count(f"{at}vocab_size", 0),
        tied=words.flag(f"{at}tie_word_embeddings", False),
        qkv_bias=words.flag(f"{at}attention_bias", False),
    )
    details = ModelDetails(
        norm_eps=words.number(f"{at}rms_norm_eps", 1e-6),
        rope_base=words.number(f"{at}rope_theta", 10000),
    )
    return spec, details


def _layout(words: Taken, model: ModelSpec) -> dict[str, Any]:
    at = "parallelism."
    tp, pp = words.count(f"{at}tp", 1), words.count(f"{at}pp", 1)
    mode = words.text(f"{at}tp_mode", "ALL_REDUCE").upper()
    engine = words.text(f"{at}pp_engine", "afab")
    if mode not in ("ALL_REDUCE", "REDUCE_SCATTER") or engine not in ("1f1b", "afab"):
        raise ConfigError(
            f"{NAME}: tp_mode={mode}, pp_engine={engine}: expected ALL_REDUCE or REDUCE_SCATTER,"
            " 1f1b or afab"
        )
    words.flag(f"{at}tp_linear_async_communication", False)
    layout: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "dp": words.count(f"{at}dp", 1),
        "cp": words.count(f"{at}context_parallel_size", 1),
        "ep": words.count(f"{at}expert_parallel_size", 1),
        "sp": mode == "REDUCE_SCATTER" and tp > 1,
        "schedule": "gpipe" if engine == "afab" and pp > 1 else "1f1b",
        "sharding": {0: "none", 1: "zero1"}.get(words.whole("optimizer.zero_stage", 0), "zero1"),
        "recompute": "full" if words.flag(f"{at}recompute_layer", False) else "none",
    }
    if 1 < pp <= model.num_layers:
        layout["layers_per_stage"] = split_by_cost(
            layers=model.num_layers,
            hidden=model.hidden,
            heads=model.num_heads,
            ffn=model.ffn,
            vocab=model.vocab,
            pp=pp,
        )
    return layout


def _settings(words: Taken) -> TrainingSettings:
    at, adam = "optimizer.learning_rate_scheduler.", "optimizer.optimizer_factory."
    rate = words.number(f"{at}learning_rate", 3e-4)
    least = words.number(f"{at}min_decay_lr", rate)
    style = words.text(f"{at}lr_decay_style", "linear")
    interval, final = (
        words.take("checkpoints.checkpoint_interval", None),
        words.flag("checkpoints.save_final_state", True),
    )
    saves = final or (isinstance(interval, int) and interval < 10**9)
    data = _data(words)
    return TrainingSettings(
        train_steps=words.count("tokens.train_steps", 100),
        learning_rate=rate,
        min_learning_rate=None if least == rate else least,
        warmup_steps=words.whole(f"{at}lr_warmup_steps", 0),
        decay_style="constant" if least == rate else "cosine" if style == "cosine" else "linear",
        weight_decay=words.number("optimizer.weight_decay", 0.01),
        adam_beta1=words.number(f"{adam}adam_beta1", 0.9),
        adam_beta2=words.number(f"{adam}adam_beta2", 0.95),
        adam_eps=words.number(f"{adam}adam_eps", 1e-8),
        clip_gradient=words.take("optimizer.clip_grad", None),
        init_std=words.take("model.init_method.std", None),
        seed=words.take("general.seed", None),
        data=data,
        tokenizer=words.take("tokenizer.tokenizer_name_or_path", None),
        save_dir=words.take("checkpoints.checkpoints_path", None) if saves else None,
        load_dir=words.take("checkpoints.resume_checkpoint_path", None),
        save_interval=interval if saves else None,
        log_interval=words.take("logging.iteration_step_info_interval", None),
    )


def _data(words: Taken) -> tuple[Dataset, ...]:
    stages = words.take("data_stages", None)
    dataset = (
        stages[0].get("data", {}).get("dataset")
        if isinstance(stages, list) and stages and isinstance(stages[0], dict)
        else None
    )
    if not isinstance(dataset, dict) or "dataset_folder" not in dataset:
        return ()
    folders = dataset["dataset_folder"]
    folders = [folders] if isinstance(folders, str) else folders
    weights = dataset.get("dataset_weights") or [1.0] * len(folders)
    return tuple(
        Dataset(path=str(folder), weight=float(weight))
        for folder, weight in zip(folders, weights, strict=False)
    )


def _drop_fixed(words: Taken) -> None:
    """Take away what says how nanotron runs and nothing of the plan."""
    fixed = (
        "general",
        "logging",
        "checkpoints",
        "tokenizer",
        "model.model_config",
        "model.init_method",
        "model.make_vocab_size_divisible_by",
    )
    words.drop_under(
        (
            *fixed,
            "model.ddp_bucket_cap_mb",
            "optimizer.optimizer_factory",
            "optimizer.learning_rate_scheduler",
        )
    )
    words.drop(
        {
            "optimizer.accumulate_grad_in_fp32": True,
            "parallelism.tp_recompute_allgather": True,
            "tokens.val_check_interval": -1,
        }
    )


def _matches(name: str, text: str) -> bool:
    return name.endswith((".yaml", ".yml")) and "batch_accumulation_per_replica:" in text


NANOTRON_SOURCE = ImportSource(name=NAME, title="nanotron's YAML", matches=_matches, read=_read)
