"""The sections of Megatron-Bridge's ConfigContainer that a plan sets, in plain types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.software.defaults import train_steps
from meshwright.software.megatron_bridge.start import start_words
from meshwright.software.megatron_core.layout import (
    SHARDED,
    context_words,
    ddp_words,
    parallel_words,
    recompute_words,
    tp_overlap,
)
from meshwright.software.megatron_core.model import loss_words, model_words, narrow_words
from meshwright.software.plan import TrainingPlan
from meshwright.software.text import Taken
from meshwright.software.words import WordTable, chosen, require, require_one_of, split_shares
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
    "WORDS",
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


_GEMMA = {
    "model.gated": True,
    "details.activation": "gelu",
    "model.norm": "rmsnorm",
    "model.tied": True,
    "model.linear_bias": False,
    "model.qkv_bias": False,
    "model.positions": "rope",
    "model.mla": None,
    "model.moe": None,
}


def _require_gemma(plan: TrainingPlan, name: str) -> None:
    model = plan.model
    first = not model.qk_norm
    gemma = f"with norms_per_layer={_NORMS}: its Gemma {2 if first else 3} has"
    reason = f"{{path}}={{given}} {gemma} {{has}}"
    require(plan, _GEMMA, name=name, reason=reason)
    if model.window is None:
        reason = f"model.window=False {gemma} True"
        raise CannotExpress(name, reason, nearest="a model with model.window=True")
    rest: dict[str, Any] = {
        "model.global_every": 2 if first else max(2, model.global_every),
        "details.rope_scaling": None,
    }
    rest |= (
        {"details.window_rope_base": None}
        if first
        else {"details.score_cap": None, "details.logit_cap": None}
    )
    require(plan, rest, name=name, reason=reason)
    if first:
        says = "its attention of Gemma 2 refuses context parallelism"
        require_one_of(plan, "layout.cp", (1,), name=name, says=says)


def take_family(words: Taken) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put the words of a Gemma's class into those of the general one; return what the model and its
    details have beside them."""
    if words.has("model.interleaved_attn_pattern"):
        return {"norms_per_layer": _NORMS}, _take_gemma3(words)
    if words.has("model.query_pre_attn_scalar"):
        words.put("model.window_attn_skip_freq", 2)
        attention, logits = (
            words.number(f"model.{name}_logit_softcapping", 0.0) or None
            for name in ("attn", "final")
        )
        scale = words.number("model.query_pre_attn_scalar", 0.0)
        details = {"query_scale": scale, "score_cap": attention, "logit_cap": logits}
        return {"norms_per_layer": _NORMS}, details
    return {}, {}


def _take_gemma3(words: Taken) -> dict[str, Any]:
    pattern = words.take("model.interleaved_attn_pattern", None)
    bases = words.take("model.rotary_base", [10_000, 1_000_000])
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
    at = "mixed_precision."
    words.drop_under((f"{at}params_dtype", f"{at}pipeline_dtype", f"{at}autocast_enabled"))
    words.take("mixed_precision.fp4_recipe", None)
    formats = ("bf16", "fp16", "fp8", "fp8_recipe", "fp4")
    shown = ", ".join(f"{name}={given[name]}" for name in formats)
    for precision, kind in KINDS.items():
        told = {name for name in formats if name != "fp8_recipe" or name in kind}
        if all({**_NOTHING, **kind}[name] == given[name] for name in told):
            return next(name for name, ours in RECIPES.items() if ours == precision), wide
    raise ConfigError(f"mixed_precision: {shown}: expected the formats of {', '.join(RECIPES)}")


NAME = "megatron-bridge"
WORDS = WordTable("software/megatron_bridge/words.csv")
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
    says = "its recipes of mixed precision start from half-precision weights"
    require_one_of(plan, "work.precision", KINDS, name=NAME, says=says)
    steps = train_steps(plan.settings, plan.work)
    found: dict[str, dict[str, Any]] = {
        "model": {
            **_CLEARED,
            **bridge_model(plan, name=NAME),
            **parallel_words(plan),
            **context_words(plan),
            **recompute_words(plan),
            **loss_words(plan.stack, plan.work.precision),
        },
        "train": {**WORDS.written(plan, "train."), "train_iters": steps},
        "optimizer": {
            **WORDS.written(plan, "optimizer."),
            "use_distributed_optimizer": plan.layout.sharding != "none",
        },
        "scheduler": _scheduler(plan, steps),
        "ddp": ddp_words(plan, name=NAME),
        "comm_overlap": {"tp_comm_overlap": tp_overlap(plan)},
        "mixed_precision": mixed_precision(plan),
        "dataset": _dataset(plan),
        "tokenizer": _tokenizer(plan),
        "checkpoint": {
            **WORDS.written(plan, "checkpoint."),
            "ckpt_format": "fsdp_dtensor" if plan.layout.sharding in SHARDED else "torch_dist",
        },
        "logger": WORDS.written(plan, "logger."),
        "rng": WORDS.written(plan, "rng."),
    }
    for section, words in start_words(plan).items():
        found[section] = {**found.get(section, {}), **words}
    return found


def _scheduler(plan: TrainingPlan, steps: int) -> dict[str, Any]:
    """The weight decay stands here too: the scheduler sets that of the optimizer at every step."""
    decay = plan.settings.weight_decay
    says = "how long it decays is nowhere said"
    return {
        "lr_decay_style": chosen(
            DECAYS, plan, "settings.decay_style", name=NAME, says=says, nearest="cosine"
        ),
        **WORDS.written(plan, "scheduler."),
        "lr_decay_iters": steps,
        "start_weight_decay": decay,
        "end_weight_decay": decay,
    }


def _dataset(plan: TrainingPlan) -> dict[str, Any]:
    settings = plan.settings
    words: dict[str, Any] = {"sequence_length": plan.work.seq_len}
    if settings.data:
        paths = [entry.path for entry in settings.data]
        words["blend"] = [paths, [entry.weight for entry in settings.data]]
        words["split"] = split_shares(plan)
    return words


def _tokenizer(plan: TrainingPlan) -> dict[str, Any]:
    kind = chosen(TOKENIZERS, plan, "settings.tokenizer_kind", name=NAME)
    given = WORDS.written(plan, "tokenizer.")
    words = {"tokenizer_type": kind, "tokenizer_model": given.pop("tokenizer_model")}
    if plan.settings.tokenizer_kind == "null":
        words["vocab_size"] = plan.model.vocab
    return words | {name: value for name, value in given.items() if value is not None}
