"""What a prediction counts on: that no export switches on, or that a file which is read leaves
off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.exports.plan import TrainingPlan
from meshwright.models.spec import ModelSpec
from meshwright.rules.software import parse_version
from meshwright.stack import NATIVE_LOSS_BYTES, Feature, Stack, find_stack, stack_names
from meshwright.workload import Precision

__all__ = [
    "BF16_GRADIENTS",
    "NO_TE_LOSS_SINCE",
    "LeftOff",
    "bf16_gradients",
    "counted_but_not_set",
    "left_off",
]

BF16_GRADIENTS = (
    *(
        "nemo",
        "megatron-bridge-25.09",
        "megatron-bridge-dgx",
        "megatron-bridge-26.02",
        "megatron-bridge-hopper",
        "megatron-bridge",
    ),
)
"""Stacks on Megatron-Core that sum gradients in bf16; the first is of what NeMo 2.0's and
Megatron-Bridge's exports switch on."""
_ALLTOALL = ("megatron-bridge", "nemo2")
"""Targets that always exchange tokens of experts through NCCL."""
NO_TE_LOSS_SINCE = (0, 19)
"""Version of Megatron-Core from which Megatron-LM refuses Transformer Engine's fused loss
("stability issues", its arguments.py)."""
_OWN = {"accelerate": "accelerate", "deepspeed": "deepspeed", "nanotron": "nanotron"}
"""Targets that switch nothing of this by the plan's stack: the stack that is what their files
start."""
_KEPT = {
    "gradient_bytes": "bytes a gradient kept",
    "reduce_bytes": "a gradient reduced",
    "transient_gradient_bytes": "a second gradient beside it",
    "half_shards": "half-precision shards of weights",
    "reduction_deferred": "whole gradients until the last micro batch",
    "logits_bytes": "bytes a logit of the loss",
}
"""Fields of a stack that memory is counted with, in words."""
_TARGETS = (*_ALLTOALL, "megatron-lm", "pai-megatron-patch")
"""Software on Megatron-Core with words for graphs and hidden exchanges; none is written: their
conditions hang on more than a plan says."""


def bf16_gradients(dispatcher: str) -> str:
    """Return the stack of a configuration that sums gradients in bf16, by how its experts exchange
    tokens."""
    return "megatron-bridge-25.09" if dispatcher == "flex" else "nemo"


def counted_but_not_set(plan: TrainingPlan, *, target: str) -> tuple[str, ...]:
    """Return a note where the plan's stack has CUDA graphs, or faster or hidden exchanges of
    experts, and the files do without."""
    stack = plan.stack
    if target in _OWN:
        return _unlike(
            stack,
            find_stack(_OWN[target]).in_precision(plan.work.precision),
            precision=plan.work.precision,
        )
    if target not in _TARGETS or stack.embedded:
        return ()
    dispatcher = "alltoall" if target in _ALLTOALL else stack.dispatcher
    set_here = replace(
        stack, launch_hidden=0.0, ep_overlap=0.0, expert_bias_fused=False, dispatcher=dispatcher
    )
    counted = ["CUDA graphs"] if stack.launch_hidden else []
    moe = plan.model.moe
    if stack.expert_bias_fused and moe is not None and (moe.expert_bias or plan.model.clamps_gate):
        counted.append("biases and clamps of experts inside their products")
    if (
        target not in _ALLTOALL
        and stack.fused_loss == "te"
        and parse_version(plan.megatron_version) >= NO_TE_LOSS_SINCE
    ):
        set_here = replace(set_here, logits_bytes=NATIVE_LOSS_BYTES)
        counted.append(
            "Transformer Engine's loss, which keeps 8 bytes a logit less (this core refuses it)"
        )
    if plan.layout.ep > 1 and stack.dispatcher != set_here.dispatcher:
        counted.append("experts through DeepEP or HybridEP")
    if plan.layout.ep > 1 and stack.ep_overlap:
        counted.append("expert exchanges behind another micro batch's compute")
    if not counted:
        return ()
    listed = " and on ".join(filter(None, (", on ".join(counted[:-1]), counted[-1])))
    return (
        (
            f"stack {stack.name} counts on {listed}, which these files do not switch"
            f" on{_advice(set_here, plan.model)}"
        ),
    )


def _unlike(stack: Stack, own: Stack, *, precision: Precision) -> tuple[str, ...]:
    """Say in which of `_KEPT` the plan's stack is not the one that the files start."""
    counted = stack.in_precision(precision)
    pairs = [(words, getattr(counted, name), getattr(own, name)) for name, words in _KEPT.items()]
    unlike = [
        f"{words} {float(there):g} (here {float(here):g})"
        for words, there, here in pairs
        if there != here
    ]
    if not unlike:
        return ()
    return (
        (
            f"stack {stack.name} counts memory with {', '.join(unlike)}; --stack {own.name}"
            " predicts what these files do"
        ),
    )


def _advice(stack: Stack, model: ModelSpec) -> str:
    """Name the stack that is as this one for the model, if there is one."""
    wanted = _that_matters(stack, model)
    known = [_that_matters(find_stack(name), model) for name in stack_names()]
    same = next((other.name for other in known if other == replace(wanted, name=other.name)), None)
    return "" if same is None else f"; --stack {same} predicts what they do"


def _that_matters(stack: Stack, model: ModelSpec) -> Stack:
    """Return a stack without what touches no layer of the model."""
    return replace(
        stack,
        source="",
        rotation_factor_fused=stack.rotation_factor_fused and model.rotation_has_factor,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOff:
    """What a file leaves off of its software, and a line of warning for each."""

    features: tuple[Feature, ...]
    warnings: tuple[str, ...]


def left_off(
    stack: Stack,
    model: ModelSpec,
    layout: Mapping[str, Any],
    *,
    switches: Mapping[Feature, str],
    given: frozenset[Feature],
) -> LeftOff:
    """Return which of a software's switches, by their words in a file, make a difference to a
    layout and are not given. Whether it has replicas hangs on the chips, which a file need not
    name."""
    relevant: dict[Feature, bool] = {
        "tp_overlap": (
            stack.tp_overlap > 0
            and layout.get("tp", 1) > 1
            and layout.get("sp", False)
            and model.takes_user_buffers
        ),
        "dp_overlap": stack.dp_overlap > 0,
        "cross_entropy_fused": stack.fused_loss is not None,
    }
    features = tuple(feature for feature in switches if relevant[feature] and feature not in given)
    ending = (
        f"the file's layout is priced without it; stack {stack.name} counts on it, and an export"
        " writes it where it can run"
    )
    return LeftOff(
        features=features,
        warnings=tuple(f"{switches[feature]} is off: {ending}" for feature in features),
    )
