"""Which stack a command line of Megatron-LM is, and what it sets otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.exports._counted import bf16_gradients, left_off
from meshwright.exports.mcore.kernels import FP8_WEIGHTS
from meshwright.exports.megatron_lm._args import Args
from meshwright.models.spec import ModelSpec
from meshwright.stack import Feature, Stack, find_stack
from meshwright.workload import Precision

__all__ = ["FoundStack", "read_stack"]

_SWITCHES: Mapping[Feature, str] = {
    "tp_overlap": "--tp-comm-overlap",
    "dp_overlap": "--overlap-grad-reduce",
    "cross_entropy_fused": "--cross-entropy-loss-fusion",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundStack:
    """A stack by its name, and what a command line leaves off of it."""

    name: str
    left_off: tuple[Feature, ...]


def read_stack(
    args: Args, model: ModelSpec, precision: Precision, layout: Mapping[str, Any]
) -> FoundStack:
    """Return the stack by what overlaps, by how experts exchange, and by the precision in which
    gradients are summed."""
    given = frozenset(feature for feature, flag in _SWITCHES.items() if args.switch(flag))
    overlaps = args.switch("--overlap-param-gather") or not given.isdisjoint(
        ("tp_overlap", "dp_overlap")
    )
    wide = args.switch("--accumulate-allreduce-grads-in-fp32")
    if args.switch("--grad-reduce-in-bf16") or (precision == "fp16" and not wide):
        name = bf16_gradients(
            "flex" if args.has_words("--moe-token-dispatcher-type", "flex") else "alltoall"
        )
    else:
        name = "megatron" if overlaps else "megatron-no-overlap"
    stack = find_stack(name).in_precision(precision)
    _read_loss(args, stack, fused="cross_entropy_fused" in given)
    missing = left_off(stack, model, layout, switches=_SWITCHES, given=given)
    args.warnings += missing.warnings
    if precision in FP8_WEIGHTS and not stack.narrow_weight_copies:
        for flag in ("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"):
            args.switch(flag)
    return FoundStack(name=name, left_off=missing.features)


def _read_loss(args: Args, stack: Stack, *, fused: bool) -> None:
    """Hand on the flags of a fused loss that an export of the stack does not write."""
    kernel = args.text("--cross-entropy-fusion-impl")
    if fused and stack.fused_loss is None:
        args.hand_on("--cross-entropy-loss-fusion")
    if kernel is not None and kernel != (stack.fused_loss or "native"):
        args.hand_on("--cross-entropy-fusion-impl", kernel)
