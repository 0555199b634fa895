"""LLaMA-Factory's YAML read back with the DeepSpeed JSON that it names, and edited."""

from __future__ import annotations

from typing import Any

from meshwright.software.beside import Beside
from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.deepspeed.read import json_values
from meshwright.software.finetuning import trainer_values
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset
from meshwright.software.text import Taken
from meshwright.software.trainer_files import (
    Cut,
    arguments_of,
    file_named,
    mended_values,
    said_text,
    targets_of,
    trainer_run,
    zero_cut,
)
from meshwright.values.edited import Values
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml

__all__ = ["LLAMAFACTORY_SOURCE", "read_llamafactory"]

_NAME = "llamafactory"
_OFF = "disable_gradient_checkpointing"
_USUAL_LENGTH, _USUAL_RANK, _USUAL_MBS = 2048, 8, 8
"""DataArguments.cutoff_len, FinetuningArguments.lora_rank; TrainingArguments' batch of a device."""
_FIXED = (
    *("stage", "do_train", "dataset_dir", "template", "flash_attn", "neat_packing", "report_to"),
    *("use_reentrant_gc", "ddp_find_unused_parameters", "lora_alpha", "lora_dropout"),
    *("quantization_method", "quantization_type", "double_quantization"),
)
"""What says how the program runs, and nothing of a plan."""


def read_llamafactory(text: str, beside: Beside) -> Imported:
    """Return the run that a YAML describes."""
    words = Taken(read_yaml(text, what=_NAME), what=_NAME)
    weights = words.text("model_name_or_path", "")
    dataset = words.take("dataset", None)
    cut = _cut(words, beside)
    again = not words.flag(_OFF, False)
    given = arguments_of(
        words,
        usual_mbs=_USUAL_MBS,
        checkpoints=again,
        weights=weights,
        data=(Dataset(path=dataset),) if isinstance(dataset, str) and "," not in dataset else (),
    )
    adapters = _adapters(words)
    length = words.take("cutoff_len", None) or _USUAL_LENGTH
    words.drop_under(_FIXED)
    return trainer_run(
        words,
        beside,
        name=_NAME,
        cut=cut,
        given=given,
        adapters=adapters,
        length=length,
        packing="packing",
    )


def _cut(words: Taken, beside: Beside) -> Cut:
    name = words.take("deepspeed", None)
    if name is None:
        return Cut(layout={"sharding": "none"})
    if (text := beside.files.get(str(name))) is None:
        raise ConfigError(f"{_NAME}: deepspeed: {name}: no such file beside it")
    return zero_cut(json_values(text, what=str(name)), what=str(name))


def _adapters(words: Taken) -> dict[str, Any]:
    kind, rank = words.text("finetuning_type", "lora"), words.count("lora_rank", _USUAL_RANK)
    modules, bits = words.take("lora_target", "all"), words.take("quantization_bit", None)
    if kind == "full":
        return {}
    if kind != "lora":
        raise ConfigError(f"{_NAME}: finetuning_type={kind}: expected full or lora")
    if bits not in (None, 4):
        raise ConfigError(f"{_NAME}: quantization_bit={bits}: expected 4")
    frozen = "half" if bits is None else "nf4"
    return {"lora_rank": rank, "lora_targets": targets_of(modules), "frozen": frozen}


def _values(plan: TrainingPlan) -> Values:
    values = trainer_values(plan, name=_NAME)
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "optim")
    off = plan.layout.recompute != "full"
    return {**{name: values[name] for name in names}, _OFF: off}


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    for name in ("sharding", "offload"):
        if getattr(plan.layout, name) != found.layout.get(name, "none"):
            wanted = f"{name}={getattr(plan.layout, name)}"
            raise ConfigError(f"{_NAME}: {wanted}: the DeepSpeed JSON that it names says that")
    return mended_values(
        text, plan, _values, form="yaml", read=lambda tried: read_llamafactory(tried, found.beside)
    )


def _matches(name: str, text: str) -> bool:
    return (
        name.endswith((".yaml", ".yml"))
        and "model_name_or_path:" in text
        and any(word in text for word in ("finetuning_type:", "cutoff_len:"))
    )


LLAMAFACTORY_SOURCE = ImportSource(
    name=_NAME,
    title="LLaMA-Factory's YAML",
    matches=_matches,
    read=lambda text: read_llamafactory(text, Beside()),
    read_beside=read_llamafactory,
    files=file_named(_NAME, "deepspeed"),
    weights=said_text(_NAME, "model_name_or_path"),
    mend=_mended,
    shardings=(),
)
