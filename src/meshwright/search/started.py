"""How a release of a training software starts a model: the stack with what its recipe sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import Chip
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.recipes import (
    RECIPES_OF,
    Recipe,
    Task,
    find_recipe,
    is_known,
    other_models,
    releases,
)
from meshwright.values.stack import Stack
from meshwright.values.workload import LoraTarget, Precision

__all__ = ["GRAPHED_SHARE", "Started", "recipe_stack", "started"]

A2A_HIDDEN = 0.8
"""Share of the expert exchange that can hide where a recipe runs it beside another micro batch
(moe_a2a_overlap): as in the stack megatron-bridge."""
WHOLE_STEP, LAYER_PARTS, ROUTER_ALONE = 1.0, 0.5, 0.2
"""Share of kernel launches that graphs remove: of a whole step; of attention or feed-forward, about
half of a layer's kernels; of router and Mamba parts alone, a small part of them."""
GRAPHED_SHARE = {
    "none": 0.0,
    "moe_router": ROUTER_ALONE,
    "attn": LAYER_PARTS,
    "full_iteration": WHOLE_STEP,
}
"""The same by what a request asks for."""
HALF_MOMENTS = 4.0
"""Bytes per parameter of Adam's two moments in bfloat16 (exp_avg_dtype and exp_avg_sq_dtype of
Megatron-Core's precision-aware optimizer)."""
UNFUSED_ROTATION_SINCE = (26, 0)
"""Container from which rotations that carry a factor run as plain PyTorch (Megatron-Core 0.16)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A software as it is started."""

    stack: Stack
    words: str = ""
    """Whose recipe it is started by, for people; empty where the stack says no release."""
    lora_targets: tuple[LoraTarget, ...] = ()
    """Layers with adapters, of a recipe that trains some; empty where it trains all weights."""


def started(
    stack: Stack,
    *,
    model: ModelSpec,
    chip: Chip,
    precision: Precision,
    num_chips: int,
    task: Task = "pretrain",
) -> Started:
    """Return the stack as its release starts this model on this chip.

    The recipe is the release's own for model, chip and number format; else that of the model of the
    same kind (with experts or without) on this chip whose active parameters are nearest, in this
    number format where there is one. ConfigError where the release, or any recipe for the chip, is
    not known.
    """
    if not stack.release:
        return Started(stack=stack)
    if stack.name != RECIPES_OF:
        raise ConfigError(
            f"stack {stack.name}@{stack.release}: releases of {RECIPES_OF} alone have recipes;"
            f" leave @{stack.release} out"
        )
    if not is_known(stack.release):
        raise ConfigError(
            f"stack {stack.name}@{stack.release}: newer than the recipes read, which end with"
            f" {releases()[-1]}; name that one"
        )
    own = find_recipe(
        release=stack.release,
        model=model.name,
        gpu=chip.name,
        precision=precision,
        task=task,
        num_gpus=num_chips,
    )
    recipe = own or _nearest(stack.release, model, chip, precision)
    if recipe is None:
        raise ConfigError(
            f"stack {stack.name}@{stack.release}: neither it nor a release before it has a recipe"
            f" for {chip.name}; releases with recipes are {', '.join(releases())}; leave"
            f" @{stack.release} out to plan without one"
        )
    which = "its recipe of" if own else "as its recipe of"
    return Started(
        stack=recipe_stack(stack, recipe),
        lora_targets=cast("tuple[LoraTarget, ...]", recipe.lora_targets),
        words=(
            f"{stack.name} {recipe.release}, {which} {recipe.meshwright_model or recipe.model} on"
            f" {recipe.gpu} in {recipe.precision}: {_features(recipe)}"
        ),
    )


def _nearest(release: str, model: ModelSpec, chip: Chip, precision: Precision) -> Recipe | None:
    """The recipe of the nearest model of the same kind, one in this precision before others."""
    size = math.log(model_params(model).active)

    def distance(recipe: Recipe) -> tuple[bool, bool, float]:
        other = named_model(recipe.meshwright_model or "")
        apart = abs(math.log(model_params(other).active) - size)
        unlike = (other.moe is None) != (model.moe is None)
        return unlike, recipe.precision != precision, apart

    found = [
        recipe
        for recipe in other_models(release=release, gpu=chip.name)
        if recipe.meshwright_model is not None
    ]
    return min(found, key=distance, default=None)


def recipe_stack(stack: Stack, recipe: Recipe) -> Stack:
    """Return the stack with the features that a recipe switches on, and without the others."""
    container = tuple(int(part) for part in (recipe.container or "0").split("."))
    changes: dict[str, Any] = {
        "dispatcher": "flex" if recipe.dispatcher in ("deepep", "hybridep") else "alltoall",
        "ep_overlap": A2A_HIDDEN if recipe.a2a_overlap else 0.0,
        "launch_hidden": _graphed_share(recipe),
        "routing_fused": recipe.router_fusion,
        "expert_bias_fused": recipe.op_fuser,
        "rotation_factor_fused": container < UNFUSED_ROTATION_SINCE,
        "tp_overlap": stack.tp_overlap if recipe.tp_comm_overlap else 0.0,
        "offloaded_layers": recipe.cpu_offloading_num_layers or 0,
        "moment_bytes": HALF_MOMENTS if recipe.moment_dtype == "bfloat16" else stack.moment_bytes,
    }
    return replace(stack, **changes)


def _graphed_share(recipe: Recipe) -> float:
    """Share of kernel launches that a recipe's graphs remove."""
    impl, scope = recipe.cuda_graph_impl, set(recipe.cuda_graph_scope)
    if impl == "none":
        return 0.0
    if impl == "full_iteration" or "full_iteration" in scope or (impl == "local" and not scope):
        return WHOLE_STEP
    return LAYER_PARTS if not scope or scope & {"attn", "mlp"} else ROUTER_ALONE


def _features(recipe: Recipe) -> str:
    """What a recipe switches on, in words."""
    graphs = " ".join(recipe.cuda_graph_scope) or recipe.cuda_graph_impl.replace("_", " ")
    words = (
        f"experts through {recipe.dispatcher}" if recipe.dispatcher else "",
        "their exchange beside another micro-batch" if recipe.a2a_overlap else "",
        f"CUDA graphs of {graphs}" if _graphed_share(recipe) else "no CUDA graphs",
        "tensor-parallel overlap" if recipe.tp_comm_overlap else "no tensor-parallel overlap",
    )
    return ", ".join(word for word in words if word)
