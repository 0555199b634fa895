"""TRL's YAML (`trl sft --config`) read back with the Accelerate YAML beside it, and edited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.software.accelerate.read import accelerate_cut
from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.finetuning import trainer_values
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset
from meshwright.software.text import Taken
from meshwright.software.trainer_files import (
    Cut,
    arguments_of,
    mended_values,
    said_text,
    targets_of,
    trainer_run,
)
from meshwright.values.edited import Values
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml

__all__ = ["TRL_SOURCE", "read_trl"]

_NAME = "trl"
_BESIDE = ("accelerate.yaml", "accelerate_config.yaml")
"""Names of the file that `accelerate launch --config_file` is given: of this export, and others."""
_USUAL_LENGTH, _USUAL_RANK, _USUAL_MBS = 1024, 16, 8
"""SFTConfig.max_length, ModelConfig.lora_r (TRL 1.x); TrainingArguments' batch of a device."""


def read_trl(text: str, beside: Beside) -> Imported:
    """Return the run that a YAML describes."""
    words = Taken(read_yaml(text, what=_NAME), what=_NAME)
    weights = words.text("model_name_or_path", "")
    dataset = words.take("dataset_name", None)
    given = arguments_of(
        words,
        usual_mbs=_USUAL_MBS,
        checkpoints=True,  # SFTConfig's own
        weights=weights,
        data=(Dataset(path=dataset),) if isinstance(dataset, str) else (),
    )
    adapters = _adapters(words)
    length = words.take("max_length", None) or _USUAL_LENGTH
    words.drop_under(("dtype", "attn_implementation", "report_to", "trl"))
    return trainer_run(
        words,
        beside,
        name=_NAME,
        cut=_cut(beside.files),
        given=given,
        adapters=adapters,
        length=length,
        packing="packing",
    )


def _cut(files: Mapping[str, str]) -> Cut:
    for name in _BESIDE:
        if name in files:
            return accelerate_cut(files[name], files)
    says = f"no {_BESIDE[0]} beside it: every rank holds the whole model (DDP)"
    return Cut(layout={"sharding": "none"}, warnings=(says,))


def _adapters(words: Taken) -> dict[str, Any]:
    rank, four = words.count("lora_r", _USUAL_RANK), words.flag("load_in_4bit", False)
    modules = words.take("lora_target_modules", None)
    words.drop_under(("lora_alpha", "lora_dropout", "bnb_4bit_quant_type", "use_bnb_nested_quant"))
    if not words.flag("use_peft", False):
        return {}
    frozen = "nf4" if four else "half"
    return {"lora_rank": rank, "lora_targets": targets_of(modules), "frozen": frozen}


def _values(plan: TrainingPlan) -> Values:
    values = trainer_values(plan, name=_NAME)
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing")
    return {name: values[name] for name in (*names, "optim")}


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    for name, own in (("sharding", "none"), ("offload", "none")):
        if getattr(plan.layout, name) != found.layout.get(name, own):
            wanted = f"{name}={getattr(plan.layout, name)}"
            raise ConfigError(f"{_NAME}: {wanted}: the Accelerate YAML beside it says that")
    return mended_values(
        text, plan, _values, form="yaml", read=lambda tried: read_trl(tried, found.beside)
    )


def _files(text: str) -> tuple[str, ...]:
    del text
    return _BESIDE


def _matches(name: str, text: str) -> bool:
    return (
        name.endswith((".yaml", ".yml"))
        and "model_name_or_path:" in text
        and not any(word in text for word in ("finetuning_type:", "cutoff_len:"))
    )


TRL_SOURCE = ImportSource(
    name=_NAME,
    title="TRL's YAML",
    matches=_matches,
    read=lambda text: read_trl(text, Beside()),
    read_beside=read_trl,
    files=_files,
    weights=said_text(_NAME, "model_name_or_path"),
    mend=_mended,
    shardings=(),
)
