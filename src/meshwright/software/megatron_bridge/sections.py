"""The sections of Megatron-Bridge's ConfigContainer that a plan sets, in plain types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.software.defaults import train_steps
from meshwright.software.megatron_core.layout import (
    ddp_words,
    parallel_words,
    recompute_words,
    tp_overlap,
)
from meshwright.software.megatron_core.model import loss_words, model_words, narrow_words
from meshwright.software.plan import TrainingPlan
from meshwright.software.text import Taken
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.workload import Precision

__all__ = [
    "DECAYS",
    "KINDS",
    "NAME",
    "PROVIDERS",
    "RECIPES",
    "TARGET",
    "TOKENIZERS",
    "Provider",
    "bridge_model",
    "mixed_precision",
    "provider_of",
    "read_mixed_precision",
    "sections",
    "take_family",
]

_NORMS = 4
"""Gemma 2 and 3 have a norm before and behind each attention and each feed-forward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """One class of `megatron.bridge.models` that builds a model."""

    name: str
    module: str
    own_activation: bool = False
    """Whether the activation function is the class's own."""


PROVIDERS = {
    "general": Provider(name="GPTModelProvider", module="gpt_provider"),
    "latent": Provider(name="MLAModelProvider", module="mla_provider"),
    "gemma2": Provider(
        name="Gemma2ModelProvider", module="gemma.gemma2_provider", own_activation=True
    ),
    "gemma3": Provider(
        name="Gemma3ModelProvider", module="gemma.gemma3_provider", own_activation=True
    ),
}


def provider_of(model: dict[str, Any]) -> Provider:
    """Return the class that the words of a model are fields of."""
    if "interleaved_attn_pattern" in model:
        return PROVIDERS["gemma3"]
    if "query_pre_attn_scalar" in model:
        return PROVIDERS["gemma2"]
    return PROVIDERS["latent" if "multi_latent_attention" in model else "general"]


def bridge_model(plan: TrainingPlan, *, name: str) -> dict[str, Any]:
    """Return the fields of the model's class, its activation function left out; CannotExpress where
    no class has such a model."""
    if plan.model.norms_per_layer != _NORMS:
        return model_words(plan, name=name, sinks=True)
    _require_gemma(plan, name)
    words = model_words(plan, name=name, norms=_NORMS)
    del words["window_attn_skip_freq"]
    return words | (_gemma3(plan) if plan.model.qk_norm else _gemma2(plan))


def _gemma2(plan: TrainingPlan) -> dict[str, Any]:
    """Layers with and without a window take turns in the class, the first has one."""
    details = plan.details
    return {
        "query_pre_attn_scalar": _whole(details.query_scale or plan.model.head_dim),
        "attn_logit_softcapping": details.score_cap or 0.0,
        "final_logit_softcapping": details.logit_cap or 0.0,
    }


def _gemma3(plan: TrainingPlan) -> dict[str, Any]:
    model, details = plan.model, plan.details
    base = details.rope_base
    assert base is not None, "details are complete"
    return {
        "window_size": model.window,
        "interleaved_attn_pattern": [model.global_every - 1, 1],
        "rotary_base": [_whole(details.window_rope_base or base), _whole(base)],
        "softmax_scale": (details.query_scale or model.head_dim) ** -0.5,
    }


def _whole(value: float) -> float:
    """Write a whole number as one."""
    return int(value) if value == int(value) else value


def _require_gemma(plan: TrainingPlan, name: str) -> None:
    model, details, layout = plan.model, plan.details, plan.layout
    first = not model.qk_norm
    wanted: tuple[tuple[str, Any, Any], ...] = (
        ("model.gated", model.gated, True),
        ("details.activation", details.activation, "gelu"),
        ("model.norm", model.norm, "rmsnorm"),
        ("model.tied", model.tied, True),
        ("model.linear_bias", model.linear_bias, False),
        ("model.qkv_bias", model.qkv_bias, False),
        ("model.positions", model.positions, "rope"),
        ("model.mla", model.mla and "latent attention", None),
        ("model.moe", model.moe and "experts", None),
        ("model.window", model.window is not None, True),
        ("model.global_every", model.global_every, 2 if first else max(2, model.global_every)),
        ("details.rope_scaling", details.rope_scaling, None),
        ("details.score_cap", details.score_cap, details.score_cap if first else None),
        ("details.logit_cap", details.logit_cap, details.logit_cap if first else None),
        (
            "details.window_rope_base",
            details.window_rope_base,
            None if first else details.window_rope_base,
        ),
    )
    for path, given, has in wanted:
        if given != has:
            reason = (
                f"{path}={given} with norms_per_layer={_NORMS}: its Gemma {'2' if first else '3'}"
                f" has {has}"
            )
            raise CannotExpress(name, reason, nearest=f"a model with {path}={has}")
    if first and layout.cp > 1:
        raise CannotExpress(
            name,
            f"cp={layout.cp}: its attention of Gemma 2 refuses context parallelism",
            nearest="cp=1",
        )


def take_family(words: Taken) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put the words of a Gemma's class into those of the general one; return what the model and its
    details have beside them."""
    if words.has("model.interleaved_attn_pattern"):
        return {"norms_per_layer": _NORMS}, _take_gemma3(words)
    if words.has("model.query_pre_attn_scalar"):
        words.put("model.window_attn_skip_freq", 2)
        caps = {
            name: words.number(f"model.{name}_logit_softcapping", 0.0) or None
            for name in ("attn", "final")
        }
        scale = words.number("model.query_pre_attn_scalar", 0.0)
        return {"norms_per_layer": _NORMS}, {
            "query_scale": scale,
            "score_cap": caps["attn"],
            "logit_cap": caps["final"],
        }
    return {}, {}


def _take_gemma3(words: Taken) -> dict[str, Any]:
    pattern, bases = (
        words.take("model.interleaved_attn_pattern", None),
        words.take("model.rotary_base", [10_000, 1_000_000]),
    )
    try:
        (local, behind), (window_base, base) = pattern, bases
        words.put("model.window_attn_skip_freq", local + behind)
        words.put("model.window_size", [words.count("model.window_size", 512) - 1, 0])
    except (TypeError, ValueError):
        behind = 0
    if behind != 1:
        words_given = f"model.interleaved_attn_pattern={pattern}, model.rotary_base={bases}"
        raise ConfigError(
            f"{words_given}: expected layers with a window before one without, [5, 1], and the"
            " bases of both"
        )
    words.put("model.rotary_base", base)
    return {
        "window_rope_base": window_base,
        "query_scale": round(words.number("model.softmax_scale", 256**-0.5) ** -2, 6),
    }


TARGET = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
RECIPES: dict[str, Precision] = {
    "bf16_mixed": "bf16",
    "fp16_mixed": "fp16",
    "bf16_with_fp8_current_scaling_mixed": "fp8",
    "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8-blockwise",
    "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_nvfp4_mixed": "nvfp4",
}
"""Named recipes of megatron/bridge/training/mixed_precision.py. Each but fp16's sums gradients in
fp32, and `setup` writes that over `ddp.grad_reduce_in_fp32`."""
_ENDS_IN_BF16 = {
    "first_last_layers_bf16": True,
    "num_layers_at_start_in_bf16": 1,
    "num_layers_at_end_in_bf16": 1,
}
KINDS: dict[Precision, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp8": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "tensorwise", **_ENDS_IN_BF16},
    "fp8-blockwise": {"bf16": True, "fp8": "hybrid", "fp8_recipe": "blockwise"},
    "mxfp8": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Fields of each, as the named recipes have them."""
_NOTHING: dict[str, Any] = {
    "bf16": False,
    "fp16": False,
    "fp8": None,
    "fp8_recipe": "tensorwise",
    "fp8_param_gather": False,
    "fp4": None,
    "first_last_layers_bf16": False,
    "num_layers_at_start_in_bf16": 0,
    "num_layers_at_end_in_bf16": 0,
    "reuse_grad_buf_for_mxfp8_param_ag": False,
}
"""What a recipe by name may have set otherwise, and is taken back."""


def mixed_precision(plan: TrainingPlan) -> dict[str, Any]:
    """Return the fields, dtypes by their names."""
    kind = KINDS[plan.work.precision]
    half = "torch.float16" if "fp16" in kind else "torch.bfloat16"
    return {
        **_NOTHING,
        **kind,
        "params_dtype": half,
        "pipeline_dtype": half,
        "autocast_enabled": False,
        "grad_reduce_in_fp32": plan.stack.gradient_bytes >= 4,
        **narrow_words(plan),
    }


def read_mixed_precision(words: Taken) -> tuple[str, bool] | None:
    """Take the fields of a written configuration: the name of the recipe that has its formats, and
    whether gradients are summed in fp32; None where it names a recipe or nothing."""
    if not words.has("mixed_precision._target_"):
        return None
    words.take("mixed_precision._target_", None)
    wide = words.flag("mixed_precision.grad_reduce_in_fp32", True)
    given = {
        name: words.take(f"mixed_precision.{name}", default) for name, default in _NOTHING.items()
    }
    words.drop_under(
        (
            "mixed_precision.params_dtype",
            "mixed_precision.pipeline_dtype",
            "mixed_precision.autocast_enabled",
        )
    )
    words.take("mixed_precision.fp4_recipe", None)
    shown = ", ".join(
        f"{name}={given[name]}" for name in ("bf16", "fp16", "fp8", "fp8_recipe", "fp4")
    )
    for precision, kind in KINDS.items():
        formats = {
            name: given[name]
            for name in (
                "bf16",
                "fp16",
                "fp8",
                "fp4",
                *(("fp8_recipe",) if "fp8_recipe" in kind else ()),
            )
        }
        if {**_NOTHING, **kind}.items() >= formats.items():
            return next(name for name, ours in RECIPES.items() if ours == precision), wide
    raise ConfigError(f"mixed_precision: {shown}: expected the formats of {', '.join(RECIPES)}")


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
