"""Fixes for a layout that needs too much memory: single edits of the layout, the software's
settings or the number of chips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from meshwright.errors import ConfigError
from meshwright.layout import SHARDINGS, Layout
from meshwright.rules import stack_rules
from meshwright.search.changes import regrid, selective_sets, split_layers
from meshwright.search.diff_labels import Label
from meshwright.search.quote import Setting

__all__ = ["ALLOCATOR_VARIABLES", "EXPANDABLE_SLACK_SHARE", "Fix", "FixKind", "fixes"]

EXPANDABLE_SLACK_SHARE = 1 / 3
"""Share of the allocator's slack that is left with expandable segments. Assumed: the mechanism maps
physical pages behind one growing range, so that freed blocks of any size can be joined; GMLake
(arXiv:2401.08156), which does the same, reports that fragmentation of 15 % of memory on average
nearly vanishes. A third is kept for rounding to pages and for the small pool."""
ALLOCATOR_VARIABLES = {
    "nvidia": "PYTORCH_CUDA_ALLOC_CONF",
    "amd": "PYTORCH_HIP_ALLOC_CONF",
    "huawei": "PYTORCH_NPU_ALLOC_CONF",
}
"""By vendor, in lower case. Others' software plans its memory ahead and has no such setting."""
MOST_GPUS_FACTOR = 16
"""More chips than this many times the given ones are no fix."""

FixKind = Literal[
    "allocator",
    "attention",
    "sp",
    "sharding",
    "selective",
    "full",
    "mbs",
    "vpp",
    "schedule",
    "tp",
    "pp",
    "cp",
    "ep",
    "gradients",
    "gpus",
]
Case = tuple[Layout, Setting]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """One edit; of several of a kind, one is enough."""

    kind: FixKind
    words: str
    apply: Callable[[Layout, Setting], Case]
    """Returns what it makes of a layout and its setting; ConfigError where it cannot be."""
    label: Label | None = None
    """What it means for a run beyond what the layout's own fields say."""


def fixes(layout: Layout, setting: Setting) -> Iterator[Fix]:
    """Yield every single edit that could save memory, valid or not; those of the allocator
    first."""
    yield from _software_fixes(setting)
    yield from _sharding_fixes(layout)
    yield from _recompute_fixes(layout, setting)
    yield from _batch_fixes(layout)
    yield from _grid_fixes(layout, setting)
    yield from _more_gpus(layout)


def _edit(**changes: Any) -> Callable[[Layout, Setting], Case]:
    return lambda layout, setting: (replace(layout, **changes), setting)


def _stack_edit(**changes: Any) -> Callable[[Layout, Setting], Case]:
    return lambda layout, setting: (
        layout,
        replace(setting, stack=replace(setting.stack, **changes)),
    )


def _rechunk(vpp: int) -> Callable[[Layout, Setting], Case]:
    return lambda layout, setting: (
        split_layers(replace(layout, vpp=vpp, layers_per_stage=None), setting.model),
        setting,
    )


def _software_fixes(setting: Setting) -> Iterator[Fix]:
    stack = setting.stack
    variable = ALLOCATOR_VARIABLES.get(setting.pool.node.chip.vendor.lower())
    if variable is not None:
        slack = _stack_edit(fragmentation_frac=stack.fragmentation_frac * EXPANDABLE_SLACK_SHARE)
        yield Fix(kind="allocator", words=f"{variable}=expandable_segments:True", apply=slack)
    if setting.work.attention not in ("flash", "flash1"):
        yield Fix(
            kind="attention",
            words="fused attention",
            apply=lambda la, s: (la, replace(s, work=replace(s.work, attention="flash"))),
        )
    if stack.gradient_bytes > 2 and setting.work.precision not in ("fp32", "tf32"):
        half = _stack_edit(gradient_bytes=2.0, reduce_bytes=min(2.0, stack.reduce_bytes))
        yield Fix(
            kind="gradients", words="gradients in 2 bytes", apply=half, label="changes training"
        )


def _sharding_fixes(layout: Layout) -> Iterator[Fix]:
    if layout.tp > 1 and not layout.sp:
        yield Fix(kind="sp", words="sp on", apply=_edit(sp=True))
    for kind in SHARDINGS[SHARDINGS.index(layout.sharding) + 1 :]:
        if kind != "hybrid":
            yield Fix(
                kind="sharding",
                words=f"sharding {kind}",
                apply=_edit(sharding=kind, shard_size=None),
            )


def _recompute_fixes(layout: Layout, setting: Setting) -> Iterator[Fix]:
    if (
        layout.recompute == "full"
        and layout.recompute_method == "uniform"
        and (layout.recompute_layers or 1) == 1
    ):
        return
    clean = {"recompute_method": "uniform", "recompute_layers": None, "recompute_modules": ()}
    if layout.recompute != "full":
        for modules in selective_sets(model=setting.model, work=setting.work, stack=setting.stack):
            words = f"recompute {'+'.join(modules)}"
            yield Fix(
                kind="selective",
                words=words,
                apply=_edit(**(clean | {"recompute": "selective", "recompute_modules": modules})),
            )
    per_chunk = -(-setting.model.total_layers // (layout.pp * layout.vpp))
    for layers in range(1, per_chunk if stack_rules(setting.stack).full_by_blocks else 1):
        block = clean | {
            "recompute": "full",
            "recompute_method": "block",
            "recompute_layers": layers,
        }
        yield Fix(
            kind="full",
            words=f"recompute {layers} of {per_chunk} layers in full",
            apply=_edit(**block),
        )
    yield Fix(
        kind="full",
        words="recompute every layer in full",
        apply=_edit(**(clean | {"recompute": "full"})),
    )


def _batch_fixes(layout: Layout) -> Iterator[Fix]:
    size = layout.mbs
    while size % 2 == 0:
        size //= 2
        yield Fix(kind="mbs", words=f"mbs {layout.mbs} -> {size}", apply=_edit(mbs=size))
    chunks = layout.vpp
    while chunks % 2 == 0:
        chunks //= 2
        yield Fix(kind="vpp", words=f"vpp {layout.vpp} -> {chunks}", apply=_rechunk(chunks))
    if layout.schedule == "gpipe":
        yield Fix(kind="schedule", words="schedule 1f1b", apply=_edit(schedule="1f1b"))


def _grid_fixes(layout: Layout, setting: Setting) -> Iterator[Fix]:
    for factor in (2, 4, 8):
        yield _grid_fix(layout, "tp", factor)
        yield _grid_fix(layout, "pp", factor)
        yield _grid_fix(layout, "cp", factor)
        if setting.model.moe is not None:
            yield Fix(
                kind="ep",
                words=f"ep {layout.ep} -> {layout.ep * factor}",
                apply=_edit(ep=layout.ep * factor),
            )


def _grid_fix(layout: Layout, axis: Literal["tp", "pp", "cp"], factor: int) -> Fix:
    size = getattr(layout, axis) * factor
    return Fix(
        kind=axis,
        words=f"{axis} {getattr(layout, axis)} -> {size}",
        apply=lambda la, s: (split_layers(regrid(la, **{axis: size}), s.model), s),
    )


def _more_gpus(layout: Layout) -> Iterator[Fix]:
    """Grow one axis and the cluster with it; all else stays."""
    factor = 2
    while factor <= MOST_GPUS_FACTOR:
        for axis in ("dp", "pp", "tp", "cp"):
            yield _growth(layout, axis, factor)
        factor *= 2


def _growth(layout: Layout, axis: str, factor: int) -> Fix:
    size = getattr(layout, axis) * factor

    def apply(given: Layout, setting: Setting) -> Case:
        if axis == "dp" and given.gbs % (given.mbs * size):
            raise ConfigError(f"gbs={given.gbs} is not divisible by mbs * dp = {given.mbs * size}")
        pool = replace(setting.pool, num_chips=setting.pool.num_chips * factor)
        grown = regrid(given, **({"dp": given.dp} | {axis: size}))
        return split_layers(grown, setting.model), replace(setting, pool=pool)

    return Fix(
        kind="gpus",
        words=f"{layout.num_chips * factor} GPUs: {axis} {getattr(layout, axis)} -> {size}",
        apply=apply,
    )
