"""Kernels and formats of a stack in the words of Megatron-Core's configuration: what its memory is
counted with."""

from __future__ import annotations

from typing import Any

from meshwright.exports._taken import Taken
from meshwright.exports.plan import TrainingPlan
from meshwright.stack import Stack
from meshwright.workload import Precision

__all__ = [
    "FP8_WEIGHTS",
    "keeps_narrow_weights",
    "loss_notes",
    "loss_words",
    "narrow_words",
    "take_loss",
]

FP8_WEIGHTS: frozenset[Precision] = frozenset(("fp8", "fp8-blockwise", "mxfp8"))
"""Formats in which the linear layers' weights may be kept themselves (`fp8_param_gather`)."""


def keeps_narrow_weights(plan: TrainingPlan) -> bool:
    """Whether the linear layers' weights are fp8 themselves, as the plan's stack counts them;
    sharded optimizers alone can update them."""
    return (
        plan.work.precision in FP8_WEIGHTS
        and not plan.stack.narrow_weight_copies
        and plan.layout.sharding != "none"
    )


def narrow_words(plan: TrainingPlan) -> dict[str, Any]:
    """Return the fields that keep the linear layers' weights in fp8; empty where they are not."""
    if not keeps_narrow_weights(plan):
        return {}
    return {
        "fp8_param_gather": True,
        **({"reuse_grad_buf_for_mxfp8_param_ag": True} if plan.work.precision == "mxfp8" else {}),
    }


def loss_words(stack: Stack, precision: Precision) -> dict[str, Any]:
    """Return the fields of the loss."""
    fused = stack.in_precision(precision).fused_loss
    if fused is None:
        return {"cross_entropy_loss_fusion": False}
    return {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": fused}


def loss_notes(plan: TrainingPlan) -> tuple[str, ...]:
    """Return what is to know of the written loss."""
    if plan.stack.in_precision(plan.work.precision).fused_loss != "te":
        return ()
    saved = (
        "it keeps no fp32 logits; native keeps 8 bytes a logit, which the prediction does not count"
    )
    return (
        (
            "cross_entropy_fusion_impl=te is the loss of NVIDIA's performance recipes, of which"
            f" Megatron-Core 0.19 warns: {saved}"
        ),
    )


def take_loss(words: Taken, stack: Stack, precision: Precision, *, prefix: str) -> None:
    """Take the fields of the loss away where they are what an export of the stack writes."""
    words.drop({f"{prefix}{name}": value for name, value in loss_words(stack, precision).items()})
