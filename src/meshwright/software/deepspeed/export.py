"""DeepSpeed: a JSON of ZeRO, beside the model's config.json and the words of transformers'
run_clm.py."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget, variables
from meshwright.software.deepspeed.trainer import (
    hf_config,
    json_text,
    notes,
    require_flat,
    trained_layers,
    trainer_words,
)
from meshwright.software.plan import TrainingPlan
from meshwright.software.words import require_one_of
from meshwright.values.errors import CannotExpress
from meshwright.values.models.params import block_params

__all__ = ["DEEPSPEED", "zero_config"]

_NAME = "deepspeed"
NVME_PATH = "/local_nvme"
"""A folder on the drives, to be edited (DeepSpeed's documentation, ZeRO-Infinity)."""
_STAGES = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}
_ENVIRONMENT = variables(
    (
        "PYTORCH_CUDA_ALLOC_CONF",
        "expandable_segments:True",
        "ZeRO frees and takes memory in changing sizes",
    )
)


def _write(plan: TrainingPlan) -> Exported:
    layout = plan.layout
    require_flat(plan, name=_NAME)
    says = "Ulysses is set up in a program of its own, not in the JSON"
    require_one_of(plan, "layout.cp", (1,), name=_NAME, says=says)
    if layout.sharding not in _STAGES:
        reason = (
            f"sharding={layout.sharding}, shard_size={layout.shard_size}: groups with replicas need"
            " MiCS, which Trainer does not start"
        )
        raise CannotExpress(_NAME, reason, nearest="sharding=zero3")
    recompute = ("--gradient_checkpointing",) if layout.recompute == "full" else ()
    return Exported(
        target=_NAME,
        files=(
            ExportedFile(name="ds_config.json", text=json_text(zero_config(plan))),
            ExportedFile(name="config.json", text=json_text(hf_config(plan, name=_NAME))),
        ),
        command=(*trainer_words(plan, name=_NAME), *recompute, "--deepspeed", "ds_config.json"),
        environment=_ENVIRONMENT,
        notes=notes(plan),
    )


def zero_config(plan: TrainingPlan) -> dict[str, Any]:
    """Return batch, precision and ZeRO; optimizer and schedule are Trainer's, by its arguments.

    With stage 3 two layers are gathered at a time, the one in work and the one behind it, as memory
    is counted.
    """
    layout, stack = plan.layout, plan.stack
    stage = _STAGES[layout.sharding]
    zero: dict[str, Any] = {
        "stage": stage,
        "overlap_comm": stack.dp_overlap > 0,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": int(stack.bucket_bytes / 2),
    }
    if stage == 3:
        model = plan.model
        sizes = (
            sum(count * block_params(model, block).total for block, count in part.blocks)
            for part in model.segments
        )
        layer = int(max(sizes))
        zero |= {
            "stage3_prefetch_bucket_size": layer,
            "stage3_max_live_parameters": 2 * layer,
            "stage3_max_reuse_distance": layer,
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    zero |= _offload(plan)
    return {
        "train_batch_size": layout.gbs,
        "train_micro_batch_size_per_gpu": layout.mbs,
        "gradient_accumulation_steps": layout.gbs // (layout.mbs * layout.dp),
        "gradient_clipping": plan.settings.clip_gradient,
        "bf16": {"enabled": plan.work.precision == "bf16"},
        "fp16": {"enabled": plan.work.precision == "fp16"},
        "data_types": {"grad_accum_dtype": plan.work.precision},
        "zero_optimization": zero,
        "steps_per_print": plan.settings.log_interval,
    }


def _offload(plan: TrainingPlan) -> dict[str, Any]:
    """Return what waits on the host, by the names of DeepSpeed's zero_optimization."""
    what, _, place = plan.layout.offload.partition("-")
    if what == "none":
        return {}
    device: dict[str, Any] = {"device": place or "cpu", "pin_memory": True}
    if place:
        device["nvme_path"] = NVME_PATH
    names = ("offload_optimizer", *(("offload_param",) if what == "weights" else ()))
    return {name: dict(device) for name in names}


DEEPSPEED = ExportTarget(
    name=_NAME,
    title="DeepSpeed",
    versions="DeepSpeed 0.15 and later, under transformers' Trainer",
    write=_write,
    trained_layers=trained_layers,
    stacks=("deepspeed", "fsdp"),
    takes_extra=True,
)
