"""A NeMo 2.0 recipe that fine-tunes: the same tree, with a checkpoint to begin from, adapters or
all weights, and NeMo's data module."""

from __future__ import annotations

from typing import Any

__all__ = ["finetuned"]

_LINEARS = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
"""NeMo's own target modules of LoRA (nemo/collections/llm/peft/lora.py): every linear layer, as
`Workload.lora_rank` prices it."""


def finetuned(tree: dict[str, Any], *, restore_from: str, lora_rank: int) -> dict[str, Any]:
    """Return a pretraining recipe as one that fine-tunes from a checkpoint; `lora_rank` 0 trains
    all weights.

    As NeMo's `default_finetune_recipe` and `finetune_recipe` of September 2025 have it: SQuAD where
    no data are given, alpha twice the rank, and no distributed optimizer with adapters, which NeMo
    2.5 says does not work.
    """
    found = {
        **tree,
        "_target_": "nemo.collections.llm.api.finetune",
        "resume": _resume(restore_from),
    }
    data = tree["data"]
    if data["_target_"].endswith("MockDataModule"):
        sizes = {
            name: data[name] for name in ("seq_length", "micro_batch_size", "global_batch_size")
        }
        found["data"] = {"_target_": "nemo.collections.llm.gpt.data.squad.SquadDataModule", **sizes}
    if not lora_rank:
        return found
    optim = tree["optim"]
    lora = {
        "_target_": "nemo.collections.llm.peft.lora.LoRA",
        "target_modules": _LINEARS,
        "dim": lora_rank,
        "alpha": 2 * lora_rank,
    }
    return {
        **found,
        "peft": lora,
        "optim": {**optim, "config": {**optim["config"], "use_distributed_optimizer": False}},
    }


def _resume(restore_from: str) -> dict[str, Any]:
    restore = {"_target_": "nemo.lightning.resume.RestoreConfig", "path": restore_from}
    return {"_target_": "nemo.lightning.resume.AutoResume", "restore_config": restore}
