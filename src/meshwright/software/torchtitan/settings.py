"""Batch, optimizer, data and checkpoints in torchtitan's words, which its TOML and its Python form
share."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import EnvVar
from meshwright.software.defaults import train_steps
from meshwright.software.plan import TrainingPlan
from meshwright.values.errors import CannotExpress

__all__ = [
    "ENVIRONMENT",
    "checkpoint",
    "dataset",
    "lr_scheduler",
    "notes",
    "optimizer",
    "recompute_mode",
    "tokenizer_folder",
    "training",
]

ENVIRONMENT = (
    EnvVar(
        name="PYTORCH_ALLOC_CONF",
        value="expandable_segments:True",
        why="FSDP frees and takes memory in changing sizes",
    ),
    EnvVar(
        name="TORCH_NCCL_ASYNC_ERROR_HANDLING",
        value="1",
        why="a rank that fails ends the others instead of leaving them waiting",
    ),
)


def training(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return the section `training` without data.

    Without a pipeline a rank works on one micro batch at a time and accumulates; with one, its
    whole share of the batch runs through the pipeline in micro batches.
    """
    layout, work = plan.layout, plan.work
    if work.lora_rank:
        raise CannotExpress(
            name, f"lora_rank={work.lora_rank}: pretraining has no adapters", nearest="lora_rank=0"
        )
    return {
        "local_batch_size": layout.mbs if layout.pp == 1 else layout.gbs // layout.dp,
        "global_batch_size": layout.gbs,
        "seq_len": work.seq_len,
        "max_norm": plan.settings.clip_gradient,
        "steps": train_steps(plan.settings, work),
        "mixed_precision_param": "float32" if work.precision == "fp32" else "bfloat16",
    }


def optimizer(plan: TrainingPlan) -> dict[str, Any]:
    """Return what AdamW is given."""
    settings = plan.settings
    return {
        "lr": settings.learning_rate,
        "beta1": settings.adam_beta1,
        "beta2": settings.adam_beta2,
        "eps": settings.adam_eps,
        "weight_decay": settings.weight_decay,
    }


def lr_scheduler(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return warm-up and decay; a constant rate is a linear decay to the peak."""
    settings = plan.settings
    words: dict[str, Any] = {"warmup_steps": settings.warmup_steps}
    if settings.decay_style == "constant":
        return {**words, "decay_type": "linear", "min_lr_factor": 1.0}
    if settings.decay_style not in ("linear", "cosine"):
        raise CannotExpress(
            name,
            f"decay_style={settings.decay_style}: it decays linearly or as a cosine",
            nearest="decay_style=cosine",
        )
    assert settings.learning_rate is not None
    assert settings.min_learning_rate is not None
    share = settings.min_learning_rate / settings.learning_rate if settings.learning_rate else 0.0
    return {**words, "decay_type": settings.decay_style, "min_lr_factor": float(f"{share:.9g}")}


def dataset(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return the corpus: torchtitan reads text through Hugging Face datasets, one at a time, and
    has a small one of its own."""
    data = plan.settings.data
    if len(data) > 1:
        raise CannotExpress(
            name,
            f"{len(data)} datasets: it reads one and has no blend",
            nearest=f"data={data[0].path}",
        )
    return {"dataset": "c4_test", **({"dataset_path": data[0].path} if data else {})}


def tokenizer_folder(plan: TrainingPlan, *, name: str) -> str:
    """Return the folder of the tokenizer; torchtitan's test tokenizer where no text of ours is
    read."""
    settings = plan.settings
    if settings.tokenizer_kind not in ("huggingface", "null"):
        words = (
            f"tokenizer_kind={settings.tokenizer_kind}: it reads the folder of a Hugging Face"
            " tokenizer"
        )
        raise CannotExpress(name, words, nearest="tokenizer_kind=huggingface")
    return settings.tokenizer or "./tests/assets/tokenizer"


def checkpoint(plan: TrainingPlan) -> dict[str, Any]:
    """Return the section `checkpoint`; the folder lies under the run's output folder."""
    settings = plan.settings
    words: dict[str, Any] = {
        "enable": settings.save_dir is not None or settings.load_dir is not None
    }
    if settings.load_dir is not None:
        words |= {"initial_load_path": settings.load_dir, "initial_load_model_only": False}
        if settings.save_dir is None:
            words["load_only"] = True
    return {**words, "interval": settings.save_interval, "last_save_model_only": False}


def recompute_mode(plan: TrainingPlan, *, name: str) -> str:
    """Return `none`, `full` or `selective` (by operation)."""
    layout = plan.layout
    if layout.recompute == "none":
        return "none"
    if layout.recompute == "full":
        if layout.recompute_method != "uniform" or layout.recompute_layers is not None:
            words = (
                f"recompute_method={layout.recompute_method},"
                f" recompute_layers={layout.recompute_layers}: full recompute is of every layer"
            )
            raise CannotExpress(
                name,
                words,
                nearest="recompute=full without method and layers, or recompute_modules=ops",
            )
        return "full"
    if layout.recompute_modules != ("ops",):
        words = (
            f"recompute_modules={'+'.join(layout.recompute_modules)}: selective recompute is by"
            " operation"
        )
        raise CannotExpress(name, words, nearest="recompute_modules=ops")
    return "selective"


def notes(plan: TrainingPlan) -> tuple[str, ...]:
    """Return what a reader must know before the start."""
    rows = (
        (
            "fp8 is written with a scale a row, which torchtitan 0.3 has alone: it takes longer"
            " than predicted with one a tensor"
        ),
    )
    mock = (
        (
            "without data it reads the text and the tokenizer under tests/assets: start it from a"
            " checkout of torchtitan"
        ),
    )
    return (
        *(() if plan.settings.data else mock),
        *(rows if plan.work.precision == "fp8" else ()),
        "validation is left off: torchtitan validates on a corpus of its own",
    )
