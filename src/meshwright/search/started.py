"""How a release of a training software starts a model: the stack with what its recipe sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import Chip
from meshwright.values.layout import Layout
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.recipes import (
    RECIPES_OF,
    Recipe,
    Task,
    find_recipe,
    is_known,
    other_models,
    recipes,
    releases,
)
from meshwright.values.remat_recipes import REMAT_OF, find_remat, remat_models, remat_releases
from meshwright.values.stack import Stack, find_stack
from meshwright.values.start import Start
from meshwright.values.switches import (
    Beginning,
    beginnings,
    find_beginning,
    release_key,
    switched,
)
from meshwright.values.workload import PRECISIONS, LoraTarget, Precision

__all__ = [
    "GRAPHED_SHARE",
    "Started",
    "library_stack",
    "recipe_span",
    "runnable",
    "started",
    "started_stack",
]

A2A_HIDDEN = 0.8
"""Share of the expert exchange that can hide where a recipe runs it beside another micro batch
(moe_a2a_overlap): as in the stack megatron-bridge."""
WHOLE_STEP, LAYER_PARTS, ROUTER_ALONE = 1.0, 0.5, 0.2
"""Share of kernel launches that graphs remove: of a whole step; of attention or feed-forward, about
half of a layer's kernels; of router and Mamba parts alone, a small part of them."""
_NEWEST, _OLDEST = "99", "0"
"""Of containers that no recipe names."""
_LIBRARY_STACK = "nemo"
"""The stack of NeMo 2.0's recipes, which Megatron-Bridge's own (src/megatron/bridge/recipes) carry
on: no graphs, experts through NCCL."""
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
    start: Start | None = None
    """What its recipe switches on; None where it has no recipes."""
    words: str = ""
    """Whose recipe it is started by, for people; empty where it has no recipes."""
    lora_targets: tuple[LoraTarget, ...] = ()
    """Layers with adapters, of a recipe that trains some; empty where it trains all weights."""


def started(
    stack: Stack,
    *,
    model: ModelSpec,
    chip: Chip,
    precision: Precision,
    num_chips: int,
    seq_len: int | None = None,
    task: Task = "pretrain",
    switches: Sequence[str] | None = None,
) -> Started:
    """Return the stack as its release starts this model on this chip; the newest release where the
    stack names none. `switches` are the words that the software is told, None those of its own
    configurations.

    The recipe is the release's own for the model (by its dims, whatever it is called), the chip and
    the number format, else that for another number format. A model that has none starts as the
    library's own configurations do, and so does any on a chip that no recipe is for; ConfigError
    for such a chip where a release was named.
    """
    if stack.name != RECIPES_OF:
        _require_known_release(stack)
        if stack.name == REMAT_OF and switches is None:
            return _by_remat(stack, model, chip, precision=precision, seq_len=seq_len)
        found = (
            find_beginning(
                stack,
                model=model,
                chip=chip,
                precision=precision,
                num_chips=num_chips,
                seq_len=seq_len,
            )
            if switches is None
            else None
        )
        return _by_words(stack, found, switches, precision=precision, family=model.family)
    release = stack.release or releases()[-1]
    if not is_known(release):
        raise ConfigError(
            f"stack {stack.name}@{release}: newer than the recipes read, which end with"
            f" {releases()[-1]}; name that one"
        )
    for wanted in (precision, *PRECISIONS):
        for name in (model.name, *_same_models(model)):
            recipe = find_recipe(
                release=release,
                model=name,
                gpu=chip.name,
                precision=wanted,
                task=task,
                num_gpus=num_chips,
            )
            if recipe is not None:
                return _by_recipe(stack, recipe, precision)
    return _as_library(stack, model=model, chip=chip, release=release)


def recipe_span(stack: str) -> tuple[str, ...]:
    """Return the first and the last release of a software whose recipes are known; () where it has
    none."""
    if stack == RECIPES_OF:
        known: tuple[str, ...] = releases()
    elif stack == REMAT_OF:
        known = remat_releases()
    else:
        configurations = beginnings(stack)
        firsts = sorted((one.release for one in configurations), key=release_key)
        lasts = sorted((one.until for one in configurations), key=release_key)
        known = (*firsts[:1], *lasts[-1:])
    return (known[0], known[-1]) if known else ()


def _by_remat(
    stack: Stack, model: ModelSpec, chip: Chip, *, precision: Precision, seq_len: int | None
) -> Started:
    """MaxText with what its benchmarks of the model on this chip keep in host memory; as it comes
    where it has none."""
    for name in (model.name, *_same_among(model, remat_models())):
        if found := find_remat(
            model=name, gpu=chip.name, precision=precision, seq_len=seq_len or 0
        ):
            break
    else:
        return Started(stack=stack)
    waiting = " ".join(found.offloaded) or "nothing"
    return Started(
        stack=replace(
            stack,
            offloads_inputs=found.offloads_inputs,
            offloads_kept=found.offloads_kept,
            offloads_outputs=found.offloads_outputs,
        ),
        words=(
            f"{stack.name} {found.release}, its benchmark of {found.model} on {found.gpu}:"
            f" remat_policy {found.remat_policy}, in host memory {waiting}"
        ),
    )


def _by_recipe(stack: Stack, recipe: Recipe, precision: Precision) -> Started:
    which = "its recipe of" if recipe.precision == precision else "as its recipe of"
    return Started(
        stack=started_stack(stack, recipe.start, container=recipe.container or _OLDEST),
        start=recipe.start,
        lora_targets=cast("tuple[LoraTarget, ...]", recipe.lora_targets),
        words=(
            f"{stack.name} {recipe.release}, {which} {recipe.meshwright_model or recipe.model} on"
            f" {recipe.gpu} in {recipe.precision}: {_features(recipe.start)}"
        ),
    )


def _same_models(model: ModelSpec) -> tuple[str, ...]:
    """Names in the catalogue, of models with recipes, whose dims are this model's."""
    names = {one.meshwright_model for one in recipes() if one.meshwright_model is not None}
    return _same_among(model, frozenset(names))


@cache
def _same_among(model: ModelSpec, names: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        sorted(
            name
            for name in names
            if replace(named_model(name), name="", max_positions=0)
            == replace(model, name="", max_positions=0)
        )
    )


def _require_known_release(stack: Stack) -> None:
    """ConfigError for a release of a software without recipes, or of a later one than was read."""
    if not stack.release:
        return
    found = beginnings(stack.name)
    if not found:
        raise ConfigError(
            f"stack {stack.name}@{stack.release}: no recipes of its releases are known;"
            f" leave @{stack.release} out"
        )
    wanted, newest = release_key(stack.release), recipe_span(stack.name)[-1]
    if wanted > release_key(newest)[: len(wanted)]:
        raise ConfigError(
            f"stack {stack.name}@{stack.release}: newer than the recipes read, which end with"
            f" {newest}; name that one"
        )


def _reached(found: Beginning, stack: Stack) -> str:
    """The release whose configuration it is: the one that the stack names, or the last before."""
    named = release_key(stack.release)
    return stack.release if named and named <= release_key(found.until) else found.until


def _by_words(
    stack: Stack,
    found: Beginning | None,
    switches: Sequence[str] | None,
    *,
    precision: Precision,
    family: str,
) -> Started:
    """A software with what it is told: these words, else those of its own configuration of the
    model on this chip, where it has one."""
    told = found.words if found else tuple(switches or ())
    said = ", ".join(told) or "none of its switches"
    words = f"{stack.name} {_reached(found, stack)}, {found.source}: {said}" if found else ""
    if switches is not None:
        words = f"{stack.name}, as asked: {said}"
    changed = switched(stack, told=told, precision=precision, family=family)
    return Started(stack=changed, words=words)


def _as_library(stack: Stack, *, model: ModelSpec, chip: Chip, release: str) -> Started:
    """The library's own configurations; ConfigError where the release that was named has no recipe
    for the chip."""
    known_chip = bool(other_models(release=release, gpu=chip.name))
    if stack.release and not known_chip:
        raise ConfigError(
            f"stack {stack.name}@{stack.release}: neither it nor a release before it has a recipe"
            f" for {chip.name}; releases with recipes are {', '.join(releases())}; leave"
            f" @{stack.release} out to plan without one"
        )
    plain = library_stack(stack)
    start = Start(tp_comm_overlap=plain.tp_overlap > 0)
    missing = f"{model.name} on {chip.name}" if known_chip else chip.name
    said = stack.release or f"{release}, its newest release"
    return Started(
        stack=plain,
        start=start,
        words=(
            f"{stack.name} {said}, which has no recipe of {missing}: as its library's own"
            f" configurations, {_features(start)}"
        ),
    )


def library_stack(stack: Stack) -> Stack:
    """Return a software of recipes as it runs where none of them does: as its library's own
    configurations, which are those of NeMo 2.0; other software as it is."""
    if stack.name != RECIPES_OF:
        return stack
    return replace(find_stack(_LIBRARY_STACK), name=stack.name, source=stack.source)


def started_stack(stack: Stack, start: Start, *, container: str = _NEWEST) -> Stack:
    """Return the stack with the features that a start switches on, and without the others; of the
    newest container where none is named."""
    core = tuple(int(part) for part in container.split("."))
    changes: dict[str, Any] = {
        "dispatcher": "flex" if start.dispatcher in ("deepep", "hybridep") else "alltoall",
        "ep_overlap": A2A_HIDDEN if start.a2a_overlap else 0.0,
        "launch_hidden": _graphed_share(start),
        "routing_fused": start.router_fusion,
        "expert_bias_fused": start.op_fuser,
        "rotation_factor_fused": core < UNFUSED_ROTATION_SINCE,
        "tp_overlap": stack.tp_overlap if start.tp_comm_overlap else 0.0,
        "offloaded_layers": start.cpu_offloading_num_layers,
        "moment_bytes": HALF_MOMENTS if start.half_moments else stack.moment_bytes,
    }
    return replace(stack, **changes)


def runnable(start: Start, layout: Layout, model: ModelSpec) -> Start:
    """Return the part of a start that Megatron-Core accepts with a layout.

    Its checks (`__post_init__` of megatron/core/transformer/transformer_config.py, and
    comm_overlap.py of Megatron-Bridge): flexible dispatchers want experts on several ranks; hidden
    exchanges want virtual stages in a pipeline, no full recompute and none of `moe`, and at most
    one layer of multi-token prediction; graphs of parts of layers no full recompute; offloading
    neither a pipeline nor recompute nor graphs.
    """
    experts = model.moe is not None
    spread = experts and layout.ep * layout.expert_tp > 1
    hides = (
        layout.ep > 1
        and (layout.pp == 1 or layout.vpp > 1)
        and layout.recompute != "full"
        and "moe" not in layout.recompute_modules
        and model.mtp_layers <= 1
    )
    graphs = start.whole_step or layout.recompute != "full"
    offloads = layout.pp == 1 and layout.recompute == "none" and start.cuda_graph_impl == "none"
    return replace(
        start,
        dispatcher=start.dispatcher if spread else "alltoall" if experts else None,
        a2a_overlap=start.a2a_overlap and experts and hides,
        cuda_graph_impl=start.cuda_graph_impl if graphs else "none",
        cuda_graph_scope=start.cuda_graph_scope if graphs else (),
        router_fusion=start.router_fusion and experts,
        op_fuser=start.op_fuser and experts,
        cpu_offloading_num_layers=(
            min(start.cpu_offloading_num_layers, model.num_layers - 1) if offloads else 0
        ),
    )


def _graphed_share(start: Start) -> float:
    """Share of kernel launches that a start's graphs remove."""
    if start.whole_step:
        return WHOLE_STEP
    if start.cuda_graph_impl == "none":
        return 0.0
    scope = set(start.cuda_graph_scope)
    return LAYER_PARTS if not scope or scope & {"attn", "mlp"} else ROUTER_ALONE


def _features(start: Start) -> str:
    """What a start switches on, in words."""
    graphs = " ".join(start.cuda_graph_scope) or start.cuda_graph_impl.replace("_", " ")
    words = (
        f"experts through {start.dispatcher}" if start.dispatcher else "",
        "their exchange beside another micro-batch" if start.a2a_overlap else "",
        f"CUDA graphs of {graphs}" if _graphed_share(start) else "no CUDA graphs",
        "tensor-parallel overlap" if start.tp_comm_overlap else "no tensor-parallel overlap",
    )
    return ", ".join(word for word in words if word)
