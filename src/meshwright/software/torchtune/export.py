"""torchtune: the YAML of a fine-tuning recipe, of one card or of several."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget
from meshwright.software.finetuning import (
    base_model,
    own_layers,
    require_finetuning,
    rounds,
    usual_settings,
)
from meshwright.software.plan import TrainingPlan
from meshwright.software.words import require_one_of
from meshwright.values.data import package_rows
from meshwright.values.errors import CannotExpress
from meshwright.values.text import write_yaml

__all__ = ["ATTENTION", "BUILDERS", "OPTIMIZERS", "TORCHTUNE"]

_NAME = "torchtune"
BUILDERS = "software/torchtune/builders.csv"
OPTIMIZERS = {
    "adam": "torch.optim.AdamW",
    "adam-8bit": "bitsandbytes.optim.AdamW8bit",
    "paged-adam-8bit": "bitsandbytes.optim.PagedAdamW8bit",
}
ATTENTION = {"linear_qkv": ["q_proj", "k_proj", "v_proj"], "linear_proj": ["output_proj"]}
_FEED_FORWARD = {"linear_fc1", "linear_fc2"}


def _write(plan: TrainingPlan) -> Exported:
    require_finetuning(plan, name=_NAME)
    several = plan.cluster.num_chips > 1
    require_one_of(
        plan, "layout.sharding", ("zero3",), name=_NAME, says="its recipes shard everything"
    )
    if plan.settings.data:
        reason = "data: a data set is a component of its own, which no path names"
        raise CannotExpress(_NAME, reason, nearest="the recipe's alpaca_cleaned_dataset")
    kind = "lora_finetune" if plan.work.lora_rank else "full_finetune"
    recipe = f"{kind}_{'distributed' if several else 'single_device'}"
    words = _values(plan, several=several)
    comment = f"# Written by meshwright for torchtune 0.6: {recipe}.\n"
    ranks = min(plan.cluster.num_chips, plan.pool.node.chips_per_node)
    start = ("--nproc_per_node", str(ranks)) if several else ()
    return Exported(
        target=_NAME,
        files=(ExportedFile(name="torchtune.yaml", text=comment + write_yaml(words)),),
        command=("tune", "run", *start, recipe, "--config", "torchtune.yaml"),
        runs_on="node",
        notes=(
            f"download the weights first: tune download {base_model(plan, name=_NAME)}"
            f" --output-dir {words['checkpointer']['checkpoint_dir']}",
            "without data it reads yahma/alpaca-cleaned",
        ),
    )


def _values(plan: TrainingPlan, *, several: bool) -> dict[str, Any]:
    settings, layout = plan.settings, plan.layout
    row = _builder(plan)
    folder = settings.tokenizer or f"weights/{base_model(plan, name=_NAME).rpartition('/')[2]}"
    words: dict[str, Any] = {
        "output_dir": settings.save_dir or "output",
        "tokenizer": {
            "_component_": row["tokenizer"],
            "path": f"{folder}/{row['tokenizer_file']}",
            **({"merges_file": f"{folder}/merges.txt"} if row["merges"] else {}),
            "max_seq_len": plan.work.seq_len,
        },
        "dataset": {
            "_component_": "torchtune.datasets.alpaca_cleaned_dataset",
            "packed": plan.work.sample_len is not None,
        },
        "seed": settings.seed,
        "shuffle": True,
        "model": _model(plan, row),
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": folder,
            "checkpoint_files": {
                "filename_format": "model-{}-of-{}.safetensors",
                "max_filename": f"{int(row['files']):05d}",
            },
            "recipe_checkpoint": None,
            "output_dir": "${output_dir}",
            "model_type": row["model_type"],
        },
        "resume_from_checkpoint": False,
        "batch_size": layout.mbs,
        "epochs": 1,
        "max_steps_per_epoch": settings.train_steps,
        "gradient_accumulation_steps": rounds(plan),
        "optimizer": _optimizer(plan),
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "clip_grad_norm": settings.clip_gradient,
        "compile": False,
        "device": "cuda",
        "dtype": "bf16",
        "enable_activation_checkpointing": layout.recompute == "full",
        "enable_activation_offloading": False,
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": "${output_dir}/logs",
        },
        "log_every_n_steps": settings.log_interval,
        "log_peak_memory_stats": True,
        "profiler": {
            "_component_": "torchtune.training.setup_torch_profiler",
            "enabled": False,
        },
    }
    return words | _by_recipe(plan, several=several)


def _by_recipe(plan: TrainingPlan, *, several: bool) -> dict[str, Any]:
    """Words that some recipes have alone."""
    settings = plan.settings
    words: dict[str, Any] = {}
    if plan.work.lora_rank:
        words["save_adapter_weights_only"] = False
    if several:
        words["fsdp_cpu_offload"] = plan.layout.offload == "weights"
    elif not plan.work.lora_rank:
        words["optimizer_in_bwd"] = False
    if settings.decay_style == "cosine":
        words["lr_scheduler"] = {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
            "num_warmup_steps": settings.warmup_steps,
        }
    elif settings.decay_style != "constant":
        reason = f"decay_style={settings.decay_style}: it has cosine and constant"
        raise CannotExpress(_NAME, reason, nearest="decay_style=cosine")
    _ = (settings.min_learning_rate, settings.eval_interval, settings.eval_steps, settings.split)
    _ = (settings.save_interval, settings.load_dir)
    return words


def _builder(plan: TrainingPlan) -> dict[str, str]:
    for row in package_rows(BUILDERS):
        if row["model"] == plan.model.name:
            return dict(row)
    known = ", ".join(row["model"] for row in package_rows(BUILDERS))
    reason = f"model {plan.model.name}: its builders in this export are of {known}"
    raise CannotExpress(_NAME, reason, nearest=f"a model of these, such as {known.split(',')[0]}")


def _model(plan: TrainingPlan, row: dict[str, str]) -> dict[str, Any]:
    rank, targets = plan.work.lora_rank, set(plan.work.lora_targets)
    way = "qlora_" if plan.work.frozen == "nf4" else "lora_" if rank else ""
    module, _, function = row["builder"].rpartition(".")
    words: dict[str, Any] = {"_component_": f"{module}.{way}{function}"}
    if not rank:
        return words
    both = targets & _FEED_FORWARD
    if both and both != _FEED_FORWARD:
        reason = f"lora_targets={','.join(sorted(both))}: a feed-forward has adapters or none"
        raise CannotExpress(_NAME, reason, nearest="lora_targets with linear_fc1 and linear_fc2")
    listed = [name for target in ATTENTION if target in targets for name in ATTENTION[target]]
    return words | {
        "lora_attn_modules": listed,
        "apply_lora_to_mlp": bool(both),
        "apply_lora_to_output": False,
        "lora_rank": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
    }


def _optimizer(plan: TrainingPlan) -> dict[str, Any]:
    settings, name = plan.settings, plan.layout.optimizer
    words: dict[str, Any] = {"_component_": OPTIMIZERS[name]}
    if name == "adam":
        words["fused"] = True
    return words | {
        "lr": settings.learning_rate,
        "betas": [settings.adam_beta1, settings.adam_beta2],
        "eps": settings.adam_eps,
        "weight_decay": settings.weight_decay,
    }


TORCHTUNE = ExportTarget(
    name=_NAME,
    title="torchtune",
    versions="torchtune 0.6",
    write=_write,
    trained_layers=own_layers,
    stacks=("torchtune",),
    usual=usual_settings,
)
