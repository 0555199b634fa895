"""Batch, optimizer, data and checkpoints in torchtitan's words, which its TOML and its Python form
share."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import variables
from meshwright.software.defaults import train_steps
from meshwright.software.plan import TrainingPlan
from meshwright.software.words import WordTable, require_one_of
from meshwright.values.errors import CannotExpress

__all__ = [
    "ENVIRONMENT",
    "WORDS",
    "checkpoint",
    "dataset",
    "lr_scheduler",
    "notes",
    "recompute_mode",
    "tokenizer_folder",
    "training",
]

WORDS = WordTable("software/torchtitan/words.csv")
ENVIRONMENT = variables(
    (
        "PYTORCH_ALLOC_CONF",
        "expandable_segments:True",
        "FSDP frees and takes memory in changing sizes",
    ),
    (
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "1",
        "a rank that fails ends the others instead of leaving them waiting",
    ),
)


def training(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return the section `training` without data.

    Without a pipeline a rank works on one micro batch at a time and accumulates; with one, its
    whole share of the batch runs through the pipeline in micro batches.
    """
    layout, work = plan.layout, plan.work
    says = "pretraining has no adapters"
    require_one_of(plan, "work.lora_rank", (0,), name=name, says=says)
    return {
        "local_batch_size": layout.mbs if layout.pp == 1 else layout.gbs // layout.dp,
        "global_batch_size": layout.gbs,
        "seq_len": work.seq_len,
        **WORDS.written(plan, "training."),
        "steps": train_steps(plan.settings, work),
        "mixed_precision_param": "float32" if work.precision == "fp32" else "bfloat16",
    }


def lr_scheduler(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return warm-up and decay; a constant rate is a linear decay to the peak."""
    settings = plan.settings
    words = WORDS.written(plan, "lr_scheduler.")
    if settings.decay_style == "constant":
        return {**words, "decay_type": "linear", "min_lr_factor": 1.0}
    styles, says = ("cosine", "linear"), "it decays linearly or as a cosine"
    require_one_of(plan, "settings.decay_style", styles, name=name, says=says)
    assert settings.learning_rate is not None
    assert settings.min_learning_rate is not None
    share = settings.min_learning_rate / settings.learning_rate if settings.learning_rate else 0.0
    return {**words, "decay_type": settings.decay_style, "min_lr_factor": float(f"{share:.9g}")}


def dataset(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return the corpus: torchtitan reads text through Hugging Face datasets, one at a time, and
    has a small one of its own."""
    data = plan.settings.data
    if len(data) > 1:
        reason = f"{len(data)} datasets: it reads one and has no blend"
        raise CannotExpress(name, reason, nearest=f"data={data[0].path}")
    return {"dataset": "c4_test", **({"dataset_path": data[0].path} if data else {})}


def tokenizer_folder(plan: TrainingPlan, *, name: str) -> str:
    """Return the folder of the tokenizer; torchtitan's test tokenizer where no text of ours is
    read."""
    kinds, says = ("huggingface", "null"), "it reads the folder of a Hugging Face tokenizer"
    require_one_of(plan, "settings.tokenizer_kind", kinds, name=name, says=says)
    return plan.settings.tokenizer or "./tests/assets/tokenizer"


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
            given = (
                f"recompute_method={layout.recompute_method},"
                f" recompute_layers={layout.recompute_layers}"
            )
            nearest = "recompute=full without method and layers, or recompute_modules=ops"
            raise CannotExpress(name, f"{given}: full recompute is of every layer", nearest=nearest)
        return "full"
    if layout.recompute_modules != ("ops",):
        modules = "+".join(layout.recompute_modules)
        reason = f"recompute_modules={modules}: selective recompute is by operation"
        raise CannotExpress(name, reason, nearest="recompute_modules=ops")
    return "selective"


_ROWS = (
    "fp8 is written with a scale a row, which torchtitan 0.3 has alone: it takes longer than"
    " predicted with one a tensor"
)
_MOCK = (
    "without data it reads the text and the tokenizer under tests/assets: start it from a checkout"
    " of torchtitan"
)


def notes(plan: TrainingPlan) -> tuple[str, ...]:
    """Return what a reader must know before the start."""
    return (
        *(() if plan.settings.data else (_MOCK,)),
        *((_ROWS,) if plan.work.precision == "fp8" else ()),
        "validation is left off: torchtitan validates on a corpus of its own",
    )
