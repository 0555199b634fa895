"""Hugging Face Accelerate: a YAML for FSDP2, beside the model's config.json and the words of
transformers' run_clm.py."""

from __future__ import annotations

import math
from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget, variables
from meshwright.software.deepspeed.trainer import (
    LAYER_CLASSES,
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
from meshwright.values.text import write_yaml

__all__ = ["ACCELERATE", "accelerate_config", "launcher"]

_NAME = "accelerate"
_LAUNCHER = "meshwright_accelerate.py"
_PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
_ENVIRONMENT = variables(
    (
        "PYTORCH_CUDA_ALLOC_CONF",
        "expandable_segments:True",
        "FSDP frees and takes memory in changing sizes",
    )
)


def _write(plan: TrainingPlan) -> Exported:
    require_flat(plan, name=_NAME)
    _require_fsdp(plan)
    words = trainer_words(plan, name=_NAME)
    config = hf_config(plan, name=_NAME)
    values = write_yaml(accelerate_config(plan, LAYER_CLASSES[config["model_type"]]))
    comment = "# Written by meshwright for Accelerate 1.10 and later.\n"
    return Exported(
        target=_NAME,
        files=(
            ExportedFile(name="accelerate.yaml", text=comment + values),
            ExportedFile(name="config.json", text=json_text(config)),
            ExportedFile(name=_LAUNCHER, text=launcher(words)),
        ),
        command=(_LAUNCHER,),
        runs_on="node",
        environment=_ENVIRONMENT,
        notes=(f"{_LAUNCHER} starts the ranks of a machine by `accelerate launch`", *notes(plan)),
    )


def _require_fsdp(plan: TrainingPlan) -> None:
    """Refuse what run_clm.py has under FSDP2 alone."""
    layout = plan.layout
    if layout.sharding == "none" and (layout.cp > 1 or layout.recompute == "full"):
        reason = (
            f"cp={layout.cp}, recompute={layout.recompute} with sharding=none: Accelerate has"
            " both with FSDP2 only"
        )
        raise CannotExpress(_NAME, reason, nearest="sharding=zero2")


def accelerate_config(plan: TrainingPlan, layer: str, *, offload: bool = False) -> dict[str, Any]:
    """Return Accelerate's YAML for a plan whose layers are of a class of transformers."""
    layout, chips = plan.layout, plan.cluster.num_chips
    devices = math.gcd(chips, plan.pool.node.chips_per_node)
    words: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": (
            "FSDP" if layout.sharding != "none" else "MULTI_GPU" if chips > 1 else "NO"
        ),
        "mixed_precision": _PRECISIONS[plan.work.precision],
        "num_machines": chips // devices,
        "num_processes": chips,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if layout.sharding == "none":
        return words
    says = "FSDP2 shards gradients with the optimizer's states"
    known = ("zero2", "zero3", "hybrid")
    require_one_of(plan, "layout.sharding", known, name=_NAME, says=says)
    words["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": layout.sharding != "zero2",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": layer,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_activation_checkpointing": layout.recompute == "full",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_offload_params": offload,
    }
    return words | _mesh(plan)


def _mesh(plan: TrainingPlan) -> dict[str, Any]:
    """Return the mesh where it is more than one group of shards: replicas, or a context that is
    cut."""
    layout = plan.layout
    group = layout.dp * layout.cp if layout.shard_size is None else layout.shard_size
    replicas = layout.dp * layout.cp // group
    if replicas == 1 and layout.cp == 1:
        return {}
    sizes = {
        "dp_replicate_size": replicas,
        "dp_shard_size": group // layout.cp,
        "tp_size": 1,
        "cp_size": layout.cp,
    }
    return {
        "parallelism_config": {f"parallelism_config_{name}": size for name, size in sizes.items()}
    }


def launcher(words: tuple[str, ...]) -> str:
    """Return a program that starts the ranks of a machine by `accelerate launch`."""
    program = "".join(f"    {word!r},\n" for word in words)
    return f'''"""Start the ranks of this machine; written by meshwright. NODE_RANK, MASTER_ADDR and MASTER_PORT say where it stands."""

import os
import sys

WORDS = [
{program}]

if __name__ == "__main__":
    place = [
        *("--machine_rank", os.environ.get("NODE_RANK", "0")),
        *("--main_process_ip", os.environ.get("MASTER_ADDR", "127.0.0.1")),
        *("--main_process_port", os.environ.get("MASTER_PORT", "29500")),
    ]
    command = ["accelerate", "launch", "--config_file", "accelerate.yaml", *place, *WORDS, *sys.argv[1:]]
    os.execvp(command[0], command)
'''  # noqa: E501


ACCELERATE = ExportTarget(
    name=_NAME,
    title="Hugging Face Accelerate",
    versions="Accelerate 1.10 and later (FSDP2), under transformers' Trainer",
    write=_write,
    trained_layers=trained_layers,
    stacks=("accelerate", "fsdp"),
    takes_extra=True,
)
