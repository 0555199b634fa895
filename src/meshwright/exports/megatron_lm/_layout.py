"""Sharding, recomputation, overlap and number formats in Megatron-LM's flags."""

from __future__ import annotations

from meshwright.errors import CannotExpress
from meshwright.exports._counted import NO_TE_LOSS_SINCE
from meshwright.exports.mcore.kernels import keeps_narrow_weights
from meshwright.exports.mcore.layout import tp_overlap
from meshwright.exports.megatron_lm._tables import NAME, Words
from meshwright.exports.plan import TrainingPlan
from meshwright.layout import Layout

__all__ = ["PRECISION_FLAGS", "SHARDING_WORDS", "uses_fsdp", "write_layout"]

PRECISION_FLAGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "fp32": (),
    "tf32": (),
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "fp8-blockwise": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
"""By `Workload.precision`. Formats as Transformer Engine's recipes have them: e4m3 both ways where
scales are fine, e5m2 gradients else. fp8 scales by the current tensor, since delayed scaling does
not go with recomputed norms and expert activations."""
_BLOCKWISE_SINCE = (0, 13)
"""Core 0.12's --fp8-recipe has tensorwise, delayed and mxfp8."""
SHARDING_WORDS = {
    "zero2": "optim_grads",
    "zero3": "optim_grads_params",
    "hybrid": "optim_grads_params",
}
_SHARED_EXPERTS_SINCE = (0, 14)
"""Core 0.14 recomputes shared_experts."""


def uses_fsdp(layout: Layout) -> bool:
    """Whether Megatron's FSDP runs instead of its distributed optimizer."""
    return layout.sharding in SHARDING_WORDS


def write_layout(words: Words, plan: TrainingPlan) -> None:
    """Add what the bound flags do not say of the layout, the stack and the precision."""
    _write_sharding(words, plan)
    _write_recompute(words, plan.layout)
    _write_overlap(words, plan)
    _write_precision(words, plan)
    _write_loss(words, plan)


def _write_sharding(words: Words, plan: TrainingPlan) -> None:
    layout = plan.layout
    if layout.sharding == "zero1":
        words.add("layout", "--use-distributed-optimizer")
    if not uses_fsdp(layout):
        return
    if (
        layout.sharding == "hybrid"
        and layout.shard_size is not None
        and not words.has("--outer-dp-sharding-strategy")
    ):
        raise CannotExpress(
            NAME,
            "groups of shards have replicas from core 0.16 on",
            nearest="megatron_version=0.16",
        )
    words.add(
        "layout", "--use-megatron-fsdp" if words.has("--use-megatron-fsdp") else "--use-custom-fsdp"
    )
    words.add("layout", "--use-distributed-optimizer")
    words.add("layout", "--data-parallel-sharding-strategy", SHARDING_WORDS[layout.sharding])
    words.add("layout", "--no-gradient-accumulation-fusion")
    if layout.sharding == "hybrid" and layout.shard_size is not None:
        words.add(
            "layout",
            "--num-distributed-optimizer-instances",
            layout.dp * layout.cp // layout.shard_size,
        )


def _write_recompute(words: Words, layout: Layout) -> None:
    if layout.recompute == "none":
        return
    words.add("layout", "--recompute-granularity", layout.recompute)
    if layout.recompute == "full":
        words.add("layout", "--recompute-method", layout.recompute_method)
        words.add(
            "layout",
            "--recompute-num-layers",
            1 if layout.recompute_layers is None else layout.recompute_layers,
        )
        return
    if "shared_experts" in layout.recompute_modules and words.version < _SHARED_EXPERTS_SINCE:
        raise CannotExpress(
            NAME, "shared_experts are recomputed from core 0.14 on", nearest="megatron_version=0.14"
        )
    words.add("layout", "--recompute-modules", *layout.recompute_modules)


def _write_overlap(words: Words, plan: TrainingPlan) -> None:
    layout, stack = plan.layout, plan.stack
    if stack.dp_overlap:
        words.add("overlap", "--overlap-grad-reduce")
        if layout.sharding != "none":
            words.add("overlap", "--overlap-param-gather")
    if tp_overlap(plan):
        words.add("overlap", "--tp-comm-overlap")
    if stack.gradient_bytes < 4 and plan.work.precision not in ("fp32", "tf32", "fp16"):
        words.add("overlap", "--grad-reduce-in-bf16")
    if stack.gradient_bytes == 4 and plan.work.precision == "fp16":
        words.add("overlap", "--accumulate-allreduce-grads-in-fp32")


def _write_precision(words: Words, plan: TrainingPlan) -> None:
    precision = plan.work.precision
    if precision == "fp8-blockwise" and words.version < _BLOCKWISE_SINCE:
        raise CannotExpress(
            NAME, "blockwise fp8 came with core 0.13", nearest="megatron_version=0.13"
        )
    for flag, *values in PRECISION_FLAGS[precision]:
        words.add("precision", flag, *values)
    if keeps_narrow_weights(plan):
        words.add("precision", "--fp8-param-gather")
        if precision == "mxfp8":
            words.add("precision", "--reuse-grad-buf-for-mxfp8-param-ag")


def _write_loss(words: Words, plan: TrainingPlan) -> None:
    fused = plan.stack.in_precision(plan.work.precision).fused_loss
    if fused is None:
        return
    words.add("training", "--cross-entropy-loss-fusion")
    if fused == "te" and words.version < NO_TE_LOSS_SINCE:
        words.add("training", "--cross-entropy-fusion-impl", "te")
