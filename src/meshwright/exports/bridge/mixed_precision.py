"""Megatron-Bridge's MixedPrecisionConfig: it decides over gradients' precision too, whatever `ddp`
says."""

from __future__ import annotations

from typing import Any

from meshwright.errors import ConfigError
from meshwright.exports._taken import Taken
from meshwright.exports.mcore.kernels import narrow_words
from meshwright.exports.plan import TrainingPlan
from meshwright.workload import Precision

__all__ = ["KINDS", "RECIPES", "TARGET", "mixed_precision", "read_mixed_precision"]

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
