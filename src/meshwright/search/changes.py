"""Changes: layouts one step away from a given one on the same chips and the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from meshwright.errors import ConfigError
from meshwright.layout import RECOMPUTES, SHARDINGS, Layout
from meshwright.models.spec import ModelSpec
from meshwright.rules import explicit_layers, stack_rules
from meshwright.stack import Stack
from meshwright.workload import Workload

__all__ = ["Axis", "Change", "neighbours", "regrid", "selective_sets", "split_layers"]

Axis = Literal["tp", "sp", "cp", "ep", "pp", "vpp", "schedule", "mbs", "recompute", "sharding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A layout that differs from another one in one axis; dp follows."""

    axis: Axis
    words: str
    """What was changed to what, `tp 8 -> 16`."""
    layout: Layout | None
    """None where the chips cannot be divided so."""
    reason: str = ""
    """Why there is none."""


def split_layers(layout: Layout, model: ModelSpec) -> Layout:
    """Write out the split of layers that a pipeline cannot divide evenly; more chunks than layers
    stay for the rules to refuse."""
    return (
        explicit_layers(layout, model) if layout.pp * layout.vpp <= model.total_layers else layout
    )


def neighbours(layout: Layout, *, model: ModelSpec, work: Workload, stack: Stack) -> list[Change]:
    """Return the changes of one axis: sizes doubled and halved, the other ways to recompute and to
    shard."""
    found: list[Change] = []
    for axis in ("tp", "pp", "cp"):
        found += [
            _resized(layout, axis, size, model) for size in _double_and_half(getattr(layout, axis))
        ]
    if model.moe is not None:
        found += [_plain(layout, "ep", ep=size) for size in _double_and_half(layout.ep)]
    if layout.pp > 1:
        found += [_rechunked(layout, size, model) for size in _double_and_half(layout.vpp)]
        found += [
            _plain(layout, "schedule", schedule=name)
            for name in stack_rules(stack).searched_schedules
            if name != layout.schedule
        ]
    found += [_plain(layout, "mbs", mbs=size) for size in _double_and_half(layout.mbs)]
    if layout.tp > 1:
        found.append(_plain(layout, "sp", sp=not layout.sp))
    return [
        *found,
        *_recompute_changes(layout, model=model, work=work, stack=stack),
        *_sharding_changes(layout),
    ]


def _double_and_half(size: int) -> Iterator[int]:
    yield size * 2
    if size % 2 == 0:
        yield size // 2


def regrid(layout: Layout, **sizes: int) -> Layout:
    """Return the layout with other tp, cp, pp or dp on the same chips; ConfigError where the chips
    cannot be divided so.

    Sequence parallelism comes with tensor parallelism and goes with it; a split of layers by hand
    does not survive another pp.
    """
    grid = {name: sizes.get(name, getattr(layout, name)) for name in ("tp", "cp", "pp")}
    ranks = grid["tp"] * grid["cp"] * grid["pp"]
    dp = sizes.get("dp", layout.num_chips // ranks)
    if "dp" not in sizes and layout.num_chips % ranks:
        text = " * ".join(f"{name}={size}" for name, size in grid.items() if size > 1)
        raise ConfigError(f"{layout.num_chips} GPUs are not divisible by {text}")
    changes: dict[str, Any] = {**grid, "dp": dp}
    changes["sp"] = grid["tp"] > 1 and (layout.sp or layout.tp == 1)
    if grid["pp"] != layout.pp:
        changes["layers_per_stage"] = None
    if grid["pp"] == 1:
        changes |= {"vpp": 1, "schedule": "1f1b"}
    if (
        layout.sharding == "hybrid"
        and layout.shard_size is not None
        and dp * grid["cp"] % layout.shard_size
    ):
        changes["shard_size"] = None
    return replace(layout, **changes)


def _resized(layout: Layout, axis: Axis, size: int, model: ModelSpec) -> Change:
    words = f"{axis} {getattr(layout, axis)} -> {size}"
    try:
        return Change(
            axis=axis, words=words, layout=split_layers(regrid(layout, **{axis: size}), model)
        )
    except ConfigError as error:
        return Change(axis=axis, words=words, layout=None, reason=str(error))


def _rechunked(layout: Layout, vpp: int, model: ModelSpec) -> Change:
    changed = split_layers(replace(layout, vpp=vpp, layers_per_stage=None), model)
    return Change(axis="vpp", words=f"vpp {layout.vpp} -> {vpp}", layout=changed)


def _plain(layout: Layout, axis: Axis, **changes: Any) -> Change:
    before, after = getattr(layout, axis), changes[axis]
    if isinstance(after, bool):
        return Change(
            axis=axis, words=f"{axis} {'on' if after else 'off'}", layout=replace(layout, **changes)
        )
    return Change(axis=axis, words=f"{axis} {before} -> {after}", layout=replace(layout, **changes))


def selective_sets(*, model: ModelSpec, work: Workload, stack: Stack) -> list[tuple[str, ...]]:
    """Return the sets of recompute modules that the software has and that free something in this
    model."""
    useless = set() if work.attention not in ("flash", "flash1") else {"core_attn"}
    useless |= set() if model.mla is not None else {"mla_up_proj"}
    useless |= set() if model.moe is not None else {"moe", "moe_act", "shared_experts"}
    if (
        model.moe is not None
        and not model.moe.first_dense_layers
        and model.moe.layer_frequency == 1
    ):
        useless |= {"mlp", "mlp_act"}
    return [
        modules for modules in stack_rules(stack).searched_modules if not useless & set(modules)
    ]


def _recompute_changes(
    layout: Layout, *, model: ModelSpec, work: Workload, stack: Stack
) -> Iterator[Change]:
    for kind in RECOMPUTES:
        if kind == "selective":
            for modules in selective_sets(model=model, work=work, stack=stack):
                if (layout.recompute, layout.recompute_modules) != (kind, modules):
                    yield _recomputing(
                        layout,
                        f"recompute {'+'.join(modules)}",
                        recompute=kind,
                        recompute_modules=modules,
                    )
        elif kind != layout.recompute:
            yield _recomputing(layout, f"recompute {kind}", recompute=kind)


def _recomputing(layout: Layout, words: str, **changes: Any) -> Change:
    clean = {"recompute_method": "uniform", "recompute_layers": None, "recompute_modules": ()}
    return Change(axis="recompute", words=words, layout=replace(layout, **(clean | changes)))


def _sharding_changes(layout: Layout) -> Iterator[Change]:
    for kind in SHARDINGS:
        if kind not in (layout.sharding, "hybrid"):
            yield Change(
                axis="sharding",
                words=f"sharding {kind}",
                layout=replace(layout, sharding=kind, shard_size=None),
            )
