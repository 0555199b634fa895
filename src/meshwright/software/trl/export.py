"""TRL: the YAML of `trl sft`, beside Accelerate's."""

from __future__ import annotations

from typing import Any

from meshwright.software.accelerate.export import accelerate_config, launcher
from meshwright.software.contract import Exported, ExportedFile, ExportTarget, variables
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
from meshwright.values.text import write_yaml

__all__ = ["TRL"]

_NAME = "trl"
_LAUNCHER = "meshwright_trl.py"
_DATASET = "trl-lib/Capybara"
"""Of TRL's own examples (docs, SFT Trainer)."""
_ENVIRONMENT = variables(
    ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "lengths of batches differ")
)


def _write(plan: TrainingPlan) -> Exported:
    kind = require_finetuning(plan, name=_NAME)
    words = {
        "model_name_or_path": base_model(plan, name=_NAME),
        "dtype": "bfloat16" if plan.work.lora_rank else "float32",
        "dataset_name": one_dataset(plan, _DATASET, name=_NAME),
        "max_length": plan.work.seq_len,
        **_packing(plan),
        **_adapters(plan),
        **trainer_values(plan, name=_NAME),
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    }
    if plan.layout.sharding == "none":
        words.pop("accelerator_config")
    comment = "# Written by meshwright for TRL 1.x (trl sft --config).\n"
    config = accelerate_config(plan, LAYER_CLASSES[kind], offload=_offloads(plan))
    if config["distributed_type"] == "FSDP":
        # Of the two switches of checkpointing, FSDP's own: Trainer refuses both.
        words["gradient_checkpointing"] = False
        words.pop("gradient_checkpointing_kwargs", None)
    program = ("-m", "trl.scripts.sft", "--config", "sft.yaml", *plan.settings.extra)
    return Exported(
        target=_NAME,
        files=(
            ExportedFile(name="sft.yaml", text=comment + write_yaml(words)),
            ExportedFile(
                name="accelerate.yaml",
                text="# Written by meshwright for Accelerate 1.10 and later.\n"
                + write_yaml(config),
            ),
            ExportedFile(name=_LAUNCHER, text=launcher(program)),
        ),
        command=(_LAUNCHER,),
        runs_on="node",
        environment=_ENVIRONMENT,
        notes=finetune_notes(plan, _DATASET),
    )


def _offloads(plan: TrainingPlan) -> bool:
    return plan.layout.offload == "weights"


def _packing(plan: TrainingPlan) -> dict[str, Any]:
    """Packed samples attend to their own alone by FlashAttention's kernels of many lengths."""
    if plan.work.sample_len is None:
        return {"packing": False}
    return {"packing": True, "attn_implementation": "flash_attention_2"}


def _adapters(plan: TrainingPlan) -> dict[str, Any]:
    """Return what TRL's ModelConfig says of adapters; nothing where all weights learn."""
    rank, frozen = plan.work.lora_rank, plan.work.frozen
    if not rank:
        return {}
    words: dict[str, Any] = {
        "use_peft": True,
        "lora_r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "lora_target_modules": adapter_modules(plan),
    }
    if frozen == "nf4":
        words |= {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": True,
        }
    return words


TRL = ExportTarget(
    name=_NAME,
    title="TRL",
    versions="TRL 1.0 and later, under Accelerate 1.10 and later",
    write=_write,
    trained_layers=own_layers,
    stacks=("trl",),
    takes_extra=True,
    usual=usual_settings,
)
