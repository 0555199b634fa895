"""LLaMA-Factory: the YAML of `llamafactory-cli train`, and a JSON of DeepSpeed where it shards."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget, variables
from meshwright.software.deepspeed.export import zero_config
from meshwright.software.deepspeed.trainer import json_text
from meshwright.software.finetuning import (
    adapter_modules,
    base_model,
    finetune_notes,
    one_dataset,
    own_layers,
    require_finetuning,
    trainer_values,
    usual_settings,
)
from meshwright.software.plan import TrainingPlan
from meshwright.software.words import require_one_of
from meshwright.values.text import write_yaml

__all__ = ["LLAMAFACTORY"]

_NAME = "llamafactory"
_DATASET = "llamafactory/alpaca_en"
"""Of its makers, on the Hugging Face Hub, in the columns that it takes for granted."""
_TEMPLATES = {"llama": "llama3", "mixtral": "mistral", "qwen2": "qwen"}
"""By model_type: its chat templates (llamafactory/data/template.py)."""
_LEFT = ("gradient_checkpointing", "gradient_checkpointing_kwargs")
_LAUNCH = variables(("FORCE_TORCHRUN", "1", "llamafactory-cli then starts a rank a card"))


def _write(plan: TrainingPlan) -> Exported:
    kind = require_finetuning(plan, name=_NAME)
    require_one_of(
        plan,
        "layout.sharding",
        ("none", "zero2", "zero3"),
        name=_NAME,
        says="it has DDP, and stages 2 and 3 of DeepSpeed",
    )
    layout, sharded = plan.layout, plan.layout.sharding != "none"
    values = trainer_values(plan, name=_NAME)
    words = {
        "model_name_or_path": base_model(plan, name=_NAME),
        "stage": "sft",
        "do_train": True,
        **_adapters(plan),
        "dataset_dir": "ONLINE",
        "dataset": one_dataset(plan, _DATASET, name=_NAME),
        "template": _TEMPLATES.get(kind, "qwen3"),
        "cutoff_len": plan.work.seq_len,
        **_packing(plan),
        "disable_gradient_checkpointing": layout.recompute != "full",
        "use_reentrant_gc": False,
        **{key: value for key, value in values.items() if key not in _LEFT},
        **({"deepspeed": "ds_config.json"} if sharded else {"ddp_find_unused_parameters": False}),
    }
    comment = (
        "# Written by meshwright for LLaMA-Factory 0.9.3 and later (llamafactory-cli train).\n"
    )
    files = [ExportedFile(name="train.yaml", text=comment + write_yaml(words))]
    if sharded:
        files.append(ExportedFile(name="ds_config.json", text=json_text(zero_config(plan))))
    return Exported(
        target=_NAME,
        files=tuple(files),
        command=("llamafactory-cli", "train", "train.yaml"),
        runs_on="node",
        environment=_LAUNCH,
        notes=finetune_notes(plan, _DATASET),
    )


def _packing(plan: TrainingPlan) -> dict[str, Any]:
    if plan.work.sample_len is None:
        return {"packing": False, "flash_attn": "sdpa"}
    return {"packing": True, "neat_packing": True, "flash_attn": "fa2"}


def _adapters(plan: TrainingPlan) -> dict[str, Any]:
    rank = plan.work.lora_rank
    if not rank:
        return {"finetuning_type": "full"}
    words: dict[str, Any] = {
        "finetuning_type": "lora",
        "lora_rank": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "lora_target": ",".join(adapter_modules(plan)),
    }
    if plan.work.frozen == "nf4":
        words |= {
            "quantization_bit": 4,
            "quantization_method": "bnb",
            "quantization_type": "nf4",
            "double_quantization": True,
        }
    return words


LLAMAFACTORY = ExportTarget(
    name=_NAME,
    title="LLaMA-Factory",
    versions="LLaMA-Factory 0.9.3 and later",
    write=_write,
    trained_layers=own_layers,
    stacks=("llamafactory",),
    usual=usual_settings,
)
