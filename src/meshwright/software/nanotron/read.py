"""nanotron's YAML read back into a model, a workload and a layout."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Imported
from meshwright.software.nanotron.export import NAME, WORDS, own_split
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.software.text import Taken
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import read_yaml
from meshwright.values.workload import Precision, Workload

__all__ = ["nanotron_matches", "read_nanotron"]

_PRECISIONS: dict[str, Precision] = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}


def read_nanotron(text: str) -> Imported:
    """Return the run that a YAML describes."""
    words = Taken(read_yaml(text, what=NAME), what=NAME)
    model, details = _model(words)
    layout = _layout(words, model)
    mbs = words.count("tokens.micro_batch_size", 1)
    rounds = words.count("tokens.batch_accumulation_per_replica", 1)
    dtype = words.text("model.dtype", "bfloat16")
    if dtype not in _PRECISIONS:
        raise ConfigError(f"{NAME}: model.dtype={dtype}: expected {', '.join(_PRECISIONS)}")
    seq_len = words.count("tokens.sequence_length", 2048)
    settings = _settings(words)
    words.drop_under(_FIXED)
    words.drop(_USUAL)
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
    if (
        words.text(f"{at}hidden_act", "silu") != "silu"
        or words.has(f"{at}rope_scaling")
        or words.has(f"{at}sliding_window_size")
    ):
        raise ConfigError(
            f"{NAME}: {at[:-1]}: hidden_act other than silu, rope_scaling and sliding_window_size"
            " are not read"
        )
    dims = WORDS.read(words, "model")
    dims["num_kv_heads"] = dims["num_kv_heads"] or dims["num_heads"]
    dims["head_dim"] = dims["hidden"] // dims["num_heads"]
    dims["qkv_bias"] = words.flag(f"{at}attention_bias", False)
    return ModelSpec(name="nanotron-model", **dims), ModelDetails(**WORDS.read(words, "details"))


def _layout(words: Taken, model: ModelSpec) -> dict[str, Any]:
    at = "parallelism."
    layout = WORDS.read(words, "layout")
    mode = words.text(f"{at}tp_mode", "ALL_REDUCE").upper()
    engine = words.text(f"{at}pp_engine", "afab")
    if mode not in ("ALL_REDUCE", "REDUCE_SCATTER") or engine not in ("1f1b", "afab"):
        raise ConfigError(
            f"{NAME}: tp_mode={mode}, pp_engine={engine}: expected ALL_REDUCE or REDUCE_SCATTER,"
            " 1f1b or afab"
        )
    words.flag(f"{at}tp_linear_async_communication", False)
    stage, redone = (
        words.whole("optimizer.zero_stage", 0),
        words.flag(f"{at}recompute_layer", False),
    )
    layout |= {
        "sp": mode == "REDUCE_SCATTER" and layout["tp"] > 1,
        "schedule": "gpipe" if engine == "afab" and layout["pp"] > 1 else "1f1b",
        "sharding": "zero1" if stage else "none",
        "recompute": "full" if redone else "none",
    }
    if 1 < layout["pp"] <= model.num_layers:
        layout["layers_per_stage"] = own_split(model, layout["pp"])
    return layout


def _settings(words: Taken) -> TrainingSettings:
    at = "optimizer.learning_rate_scheduler."
    given = WORDS.read(words, "settings")
    rate = given["learning_rate"]
    least = words.number(f"{at}min_decay_lr", rate)
    style = words.text(f"{at}lr_decay_style", "linear")
    interval = words.take("checkpoints.checkpoint_interval", None)
    final = words.flag("checkpoints.save_final_state", True)
    saves = final or (isinstance(interval, int) and interval < 10**9)
    return TrainingSettings(
        **given,
        min_learning_rate=None if least == rate else least,
        decay_style="constant" if least == rate else "cosine" if style == "cosine" else "linear",
        data=_data(words),
        save_dir=words.take("checkpoints.checkpoints_path", None) if saves else None,
        save_interval=interval if saves else None,
    )


def _data(words: Taken) -> tuple[Dataset, ...]:
    stages = words.take("data_stages", None)
    dataset: Any = stages[0] if isinstance(stages, list) and stages else None
    for key in ("data", "dataset"):
        dataset = dataset.get(key) if isinstance(dataset, dict) else None
    if not isinstance(dataset, dict) or "dataset_folder" not in dataset:
        return ()
    folders = dataset["dataset_folder"]
    folders = [folders] if isinstance(folders, str) else folders
    weights: Any = dataset.get("dataset_weights")
    if weights is None and isinstance(folders, list):
        weights = [1.0] * len(folders)
    try:
        return tuple(
            Dataset(path=str(folder), weight=float(weight))
            for folder, weight in zip(folders, weights, strict=False)
        )
    except (TypeError, ValueError):
        raise ConfigError(
            f"nanotron: dataset_folder={folders}, dataset_weights={weights}: expected a path, or"
            " paths and as many numbers"
        ) from None


_FIXED = (
    *("general", "logging", "checkpoints", "tokenizer", "model.model_config", "model.init_method"),
    *("model.make_vocab_size_divisible_by", "model.ddp_bucket_cap_mb"),
    *("optimizer.optimizer_factory", "optimizer.learning_rate_scheduler"),
)
"""What says how nanotron runs, and nothing of the plan."""
_USUAL = {
    "optimizer.accumulate_grad_in_fp32": True,
    "parallelism.tp_recompute_allgather": True,
    "tokens.val_check_interval": -1,
}


def nanotron_matches(name: str, text: str) -> bool:
    """Whether a file is a YAML of nanotron."""
    return name.endswith((".yaml", ".yml")) and "batch_accumulation_per_replica:" in text
