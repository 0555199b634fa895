"""The sections of Megatron-Bridge's ConfigContainer that a plan sets, in plain types."""

from __future__ import annotations

from typing import Any

from meshwright.errors import CannotExpress
from meshwright.exports.bridge.families import bridge_model
from meshwright.exports.bridge.mixed_precision import KINDS, mixed_precision
from meshwright.exports.defaults import train_steps
from meshwright.exports.mcore.kernels import loss_words
from meshwright.exports.mcore.layout import ddp_words, parallel_words, recompute_words, tp_overlap
from meshwright.exports.plan import TrainingPlan

__all__ = ["DECAYS", "NAME", "TOKENIZERS", "sections"]

NAME = "megatron-bridge"
TOKENIZERS = {
    "huggingface": "HuggingFaceTokenizer",
    "sentencepiece": "SentencePieceTokenizer",
    "gpt2-bpe": "GPT2BPETokenizer",
    "tiktoken": "TikTokenizer",
    "null": "NullTokenizer",
}
DECAYS = {
    "constant": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "inverse-square-root": "inverse-square-root",
}

_CLEARED = {
    "pipeline_model_parallel_layout": None,
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
}
"""Fields that recipes set and that a plan without uneven stages or recompute must take back."""


def sections(plan: TrainingPlan) -> dict[str, Any]:
    """Return the container's sections by name; the activation function, which is code, is not among
    them."""
    settings = plan.settings
    if plan.work.precision not in KINDS:
        reason = (
            f"precision={plan.work.precision}: its recipes of mixed precision start from"
            " half-precision weights"
        )
        raise CannotExpress(NAME, reason, nearest="precision=bf16")
    loss = loss_words(plan.stack, plan.work.precision)
    model = {
        **bridge_model(plan, name=NAME),
        **parallel_words(plan),
        **recompute_words(plan),
        **loss,
    }
    steps = train_steps(settings, plan.work)
    return {
        "model": {**_CLEARED, **model},
        "train": {
            "train_iters": steps,
            "global_batch_size": plan.layout.gbs,
            "micro_batch_size": plan.layout.mbs,
            "eval_interval": settings.eval_interval,
            "eval_iters": settings.eval_steps,
        },
        "optimizer": _optimizer(plan),
        "scheduler": _scheduler(plan, steps),
        "ddp": ddp_words(plan, name=NAME),
        "comm_overlap": {"tp_comm_overlap": tp_overlap(plan)},
        "mixed_precision": mixed_precision(plan),
        "dataset": _dataset(plan),
        "tokenizer": _tokenizer(plan),
        "checkpoint": _checkpoint(plan),
        "logger": {"log_interval": settings.log_interval},
        "rng": {"seed": settings.seed},
    }


def _optimizer(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    return {
        "lr": settings.learning_rate,
        "min_lr": settings.min_learning_rate,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "adam_eps": settings.adam_eps,
        "clip_grad": settings.clip_gradient,
        "use_distributed_optimizer": plan.layout.sharding != "none",
    }


def _scheduler(plan: TrainingPlan, steps: int) -> dict[str, Any]:
    """The weight decay stands here too: the scheduler sets that of the optimizer at every step."""
    settings = plan.settings
    if settings.decay_style not in DECAYS:
        reason = f"decay_style={settings.decay_style}: how long it decays is nowhere said"
        raise CannotExpress(NAME, reason, nearest="decay_style=cosine")
    return {
        "lr_decay_style": DECAYS[settings.decay_style],
        "lr_warmup_iters": settings.warmup_steps,
        "lr_decay_iters": steps,
        "start_weight_decay": settings.weight_decay,
        "end_weight_decay": settings.weight_decay,
    }


def _dataset(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    words: dict[str, Any] = {"sequence_length": plan.work.seq_len}
    if settings.data:
        words["blend"] = [
            [entry.path for entry in settings.data],
            [entry.weight for entry in settings.data],
        ]
        words["split"] = ",".join(f"{share:g}" for share in settings.split or ())
    return words


def _tokenizer(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    if settings.tokenizer_kind not in TOKENIZERS:
        reason = f"tokenizer_kind={settings.tokenizer_kind}: it has {', '.join(TOKENIZERS)}"
        raise CannotExpress(NAME, reason, nearest="tokenizer_kind=huggingface")
    words: dict[str, Any] = {
        "tokenizer_type": TOKENIZERS[settings.tokenizer_kind],
        "tokenizer_model": settings.tokenizer,
    }
    if settings.tokenizer_kind == "null":
        words["vocab_size"] = plan.model.vocab
    return words | {
        name: value
        for name, value in (
            ("vocab_file", settings.vocab_file),
            ("merge_file", settings.merge_file),
        )
        if value is not None
    }


def _checkpoint(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    fsdp = plan.layout.sharding in ("zero2", "zero3", "hybrid")
    return {
        "save": settings.save_dir,
        "load": settings.load_dir,
        "save_interval": settings.save_interval,
        "ckpt_format": "fsdp_dtensor" if fsdp else "torch_dist",
    }
