"""Environment variables that Megatron-LM needs or that pay, each with the reason."""

from __future__ import annotations

from meshwright.exports.exported import EnvVar
from meshwright.exports.megatron_lm._layout import uses_fsdp
from meshwright.exports.megatron_lm._tables import minor
from meshwright.exports.plan import TrainingPlan

__all__ = ["environment"]

_FREE_QUEUES = frozenset({"blackwell", "blackwell-rtx", "rubin"})
"""Generations whose launches keep their order without the limit (Megatron-LM arguments.py: arch
version 10 and later)."""
_ALWAYS_BEFORE = (0, 13)
"""Core 0.12 demands it with tensor parallelism on every generation: its condition lacks a
bracket."""


def environment(plan: TrainingPlan) -> tuple[EnvVar, ...]:
    """Return the variables of a plan."""
    found = [
        EnvVar(
            name="PYTORCH_CUDA_ALLOC_CONF",
            value="expandable_segments:True",
            why="less fragmentation of GPU memory",
        )
    ]
    if _one_queue(plan):
        why = (
            "kernels start in the order of their launch, so exchanges of tensor and context"
            " parallelism overlap"
        )
        found.append(EnvVar(name="CUDA_DEVICE_MAX_CONNECTIONS", value="1", why=why))
    found.append(
        EnvVar(
            name="TORCH_NCCL_AVOID_RECORD_STREAMS",
            value="1",
            why="exchanged tensors are freed without waiting",
        )
    )
    if not plan.stack.in_switch_reductions:
        found.append(
            EnvVar(
                name="NCCL_NVLS_ENABLE", value="0", why="saves the buffers of in-switch reductions"
            )
        )
    if plan.stack.tp_overlap and plan.layout.tp > 1:
        found += [
            EnvVar(
                name=f"NVTE_{way}_LAYERNORM_SM_MARGIN",
                value="16",
                why="leaves multiprocessors to exchanges that overlap norms",
            )
            for way in ("FWD", "BWD")
        ]
    if plan.work.precision == "tf32":
        found.append(
            EnvVar(name="NVIDIA_TF32_OVERRIDE", value="1", why="fp32 matrix products run in tf32")
        )
    return tuple(found)


def _one_queue(plan: TrainingPlan) -> bool:
    """Megatron-LM demands one queue with tensor or context parallelism before Blackwell; FSDP
    forbids it."""
    layout = plan.layout
    if uses_fsdp(layout):
        return False
    if minor(plan.megatron_version) < _ALWAYS_BEFORE and layout.tp > 1:
        return True
    return plan.pool.node.chip.generation not in _FREE_QUEUES and (layout.tp > 1 or layout.cp > 1)
