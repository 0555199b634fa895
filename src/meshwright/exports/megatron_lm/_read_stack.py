"""Which stack a command line of Megatron-LM is, and what it sets otherwise."""

from __future__ import annotations

from meshwright.exports._counted import bf16_gradients
from meshwright.exports.mcore.kernels import FP8_WEIGHTS
from meshwright.exports.megatron_lm._args import Args
from meshwright.stack import Stack, find_stack
from meshwright.workload import Precision

__all__ = ["read_stack"]


def read_stack(args: Args, precision: Precision) -> str:
    """Return the stack by what overlaps, by how experts exchange, and by the precision in which gradients are summed."""
    overlaps = [args.switch(flag) for flag in ("--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap")]
    wide = args.switch("--accumulate-allreduce-grads-in-fp32")
    if args.switch("--grad-reduce-in-bf16") or (precision == "fp16" and not wide):
        name = bf16_gradients("flex" if args.has_words("--moe-token-dispatcher-type", "flex") else "alltoall")
    else:
        name = "megatron" if any(overlaps) else "megatron-no-overlap"
    stack = find_stack(name).in_precision(precision)
    _read_loss(args, stack)
    if precision in FP8_WEIGHTS and not stack.narrow_weight_copies:
        for flag in ("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"):
            args.switch(flag)
    return name


def _read_loss(args: Args, stack: Stack) -> None:
    """Take the flags of the loss where an export of the stack writes them; hand on what it does not, and say what it adds."""
    fused, kernel = args.switch("--cross-entropy-loss-fusion"), args.text("--cross-entropy-fusion-impl")
    if not fused and stack.fused_loss is not None:
        args.warnings.append(f"--cross-entropy-loss-fusion is not given; stack {stack.name} counts on it, and an export writes it")
    if fused and stack.fused_loss is None:
        args.hand_on("--cross-entropy-loss-fusion")
    if kernel is not None and kernel != (stack.fused_loss or "native"):
        args.hand_on("--cross-entropy-fusion-impl", kernel)
