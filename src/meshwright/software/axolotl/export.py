"""Axolotl: one YAML, which `axolotl train` starts on every card of a machine."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget
from meshwright.software.deepspeed.trainer import LAYER_CLASSES
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

__all__ = ["AXOLOTL", "WORDS", "sharding_words"]

_NAME = "axolotl"
_DATASET = "tatsu-lab/alpaca"
"""Of Axolotl's own examples (examples/llama-3)."""
WORDS = {
    "per_device_train_batch_size": "micro_batch_size",
    "optim": "optimizer",
    "lr_scheduler_type": "lr_scheduler",
}
"""Axolotl's own words for fields of transformers' TrainingArguments; others are the same."""
_LEFT = ("report_to", "save_strategy", "gradient_checkpointing_kwargs")


def _write(plan: TrainingPlan) -> Exported:
    kind = require_finetuning(plan, name=_NAME)
    require_one_of(
        plan, "layout.sharding", ("none", "zero2", "zero3"), name=_NAME, says="it has FSDP or DDP"
    )
    values = trainer_values(plan, name=_NAME)
    words = {
        "base_model": base_model(plan, name=_NAME),
        "datasets": [{"path": one_dataset(plan, _DATASET, name=_NAME), "type": "alpaca"}],
        "sequence_len": plan.work.seq_len,
        "sample_packing": plan.work.sample_len is not None,
        "attn_implementation": "flash_attention_2" if plan.work.sample_len else "sdpa",
        **_adapters(plan),
        **{WORDS.get(key, key): value for key, value in values.items() if key not in _LEFT},
        **sharding_words(plan, LAYER_CLASSES[kind]),
    }
    if plan.settings.save_dir is None:
        words["save_strategy"] = "no"
    comment = "# Written by meshwright for Axolotl 0.12 and later (axolotl train).\n"
    chips = str(min(plan.cluster.num_chips, plan.pool.node.chips_per_node))
    return Exported(
        target=_NAME,
        files=(ExportedFile(name="axolotl.yaml", text=comment + write_yaml(words)),),
        command=("axolotl", "train", "axolotl.yaml", "--num-processes", chips),
        runs_on="node",
        notes=finetune_notes(plan, _DATASET),
    )


def _adapters(plan: TrainingPlan) -> dict[str, Any]:
    rank, frozen = plan.work.lora_rank, plan.work.frozen
    if not rank:
        return {}
    return {
        "adapter": "qlora" if frozen == "nf4" else "lora",
        "load_in_4bit": frozen == "nf4",
        "lora_r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "lora_target_modules": adapter_modules(plan),
    }


def sharding_words(plan: TrainingPlan, layer: str) -> dict[str, Any]:
    """Return what a sharded layout sets, for layers of a class of transformers."""
    layout = plan.layout
    if layout.sharding == "none":
        return {}
    # Of the two switches of checkpointing, FSDP's own: Axolotl refuses both.
    return {
        "gradient_checkpointing": False,
        "fsdp_version": 2,
        "fsdp_config": {
            "offload_params": layout.offload == "weights",
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": layer,
            "state_dict_type": "SHARDED_STATE_DICT",
            "reshard_after_forward": layout.sharding != "zero2",
            "activation_checkpointing": layout.recompute == "full",
        },
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    }


AXOLOTL = ExportTarget(
    name=_NAME,
    title="Axolotl",
    versions="Axolotl 0.12 and later",
    write=_write,
    trained_layers=own_layers,
    stacks=("axolotl",),
    usual=usual_settings,
)
