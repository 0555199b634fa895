"""How NeMo 1.x trains: the sections `trainer` and `exp_manager`, and the optimizer."""

from __future__ import annotations

import math
from typing import Any

from meshwright.software.defaults import train_steps
from meshwright.software.plan import TrainingPlan
from meshwright.software.words import WordTable, require_one_of

__all__ = ["LINEAR", "NAME", "WORDS", "exp_manager", "optimizer", "trainer"]

NAME = "nemo1"
WORDS = WordTable("software/nemo1/words.csv")
LINEAR = "WarmupAnnealing"
"""NeMo 1.x's rate that falls along a line, as its T5 has it (nemo/core/optim/lr_scheduler.py)."""


def trainer(plan: TrainingPlan, *, precision: str) -> dict[str, Any]:
    """Return the section of PyTorch Lightning's Trainer, with its word for the precision."""
    settings, chips = plan.settings, plan.cluster.num_chips
    devices = math.gcd(chips, plan.pool.node.chips_per_node)
    words = WORDS.written(plan, "trainer.")
    steps = train_steps(settings, plan.work)
    return {
        "num_nodes": chips // devices,
        "devices": devices,
        "accelerator": "gpu",
        "precision": precision,
        "logger": False,
        "enable_checkpointing": False,
        "use_distributed_sampler": False,
        "max_epochs": None,
        "max_steps": steps,
        "max_time": "00:11:30:00",
        "log_every_n_steps": words["log_every_n_steps"],
        "val_check_interval": _val_interval(plan),
        "limit_val_batches": settings.eval_steps,
        "limit_test_batches": settings.eval_steps,
        "accumulate_grad_batches": 1,
        "gradient_clip_val": words["gradient_clip_val"],
    }


def _val_interval(plan: TrainingPlan) -> int:
    """Steps between validations, at most those of the run; NeMo refuses more."""
    settings, steps = plan.settings, train_steps(plan.settings, plan.work)
    return min(settings.eval_interval or steps, steps) if settings.eval_steps else steps


def _checkpoints(plan: TrainingPlan) -> dict[str, Any]:
    """What is kept beside the last, and its name: the best by validation loss, as the launcher's
    configurations have it, else the newest."""
    words = WORDS.written(plan, "exp_manager.checkpoint_callback_params.")
    name = f"megatron_{_kind(plan)}--"
    if not plan.settings.eval_steps:
        newest = {"monitor": "step", "save_top_k": 10, "mode": "max", **words}
        return {**newest, "filename": f"{name}{{step}}-{{consumed_samples}}"}
    if words["every_n_train_steps"] == plan.settings.eval_interval:
        # Lightning then saves behind each validation, by the loss that it has just found.
        words = {}
    best = {"monitor": "val_loss", "save_top_k": 10, "mode": "min", **words}
    return {**best, "filename": f"{name}{{val_loss:.2f}}-{{step}}-{{consumed_samples}}"}


def exp_manager(plan: TrainingPlan) -> dict[str, Any]:
    """Return the section of logs and checkpoints."""
    settings = plan.settings
    return {
        "explicit_log_dir": settings.save_dir or "${training.run.results_dir}/results",
        "exp_dir": None,
        "name": f"megatron_{_kind(plan)}",
        "create_wandb_logger": False,
        "resume_if_exists": True,
        "resume_ignore_no_checkpoint": True,
        "create_checkpoint_callback": settings.save_dir is not None,
        "checkpoint_callback_params": {
            **_checkpoints(plan),
            "save_last": True,
            "always_save_nemo": False,
            "save_nemo_on_train_end": False,
            "model_parallel_size": plan.layout.tp * plan.layout.pp,
        },
        "log_step_timing": True,
        "step_timing_kwargs": {"sync_cuda": True, "buffer_size": 5},
    }


def _kind(plan: TrainingPlan) -> str:
    """What NeMo 1.x calls a model of this family."""
    return {"decoder": "gpt", "encoder": "bert", "encoder-decoder": "t5"}[plan.model.family]


def optimizer(plan: TrainingPlan, *, legacy: bool) -> dict[str, Any]:
    """Return the optimizer and its schedule; `legacy` is NeMo's own GPT in place of
    Megatron-Core's."""
    settings = plan.settings
    require_one_of(
        plan,
        "settings.decay_style",
        ("cosine", "linear", "constant"),
        name=NAME,
        says="this export has cosine, linear and constant",
    )
    constant = settings.decay_style == "constant"
    least = settings.learning_rate if constant else settings.min_learning_rate
    sharded = plan.layout.sharding == "zero1"
    own = "distributed_fused_adam" if legacy else "mcore_distributed_optim"
    words, overlap = WORDS.written(plan, "model.optim."), plan.stack.dp_overlap > 0
    return {
        "name": own if sharded else "fused_adam",
        "lr": words["lr"],
        "weight_decay": words["weight_decay"],
        "betas": [settings.adam_beta1, settings.adam_beta2],
        "eps": words["eps"],
        **({"overlap_grad_sync": overlap, "overlap_param_sync": overlap} if sharded else {}),
        "sched": {
            "name": LINEAR if settings.decay_style == "linear" else "CosineAnnealing",
            **WORDS.written(plan, "model.optim.sched."),
            **({} if settings.decay_style == "linear" else {"constant_steps": 0}),
            "min_lr": least,
        },
    }
