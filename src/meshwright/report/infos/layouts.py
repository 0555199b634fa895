"""Layouts as a report writes them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from meshwright.layout import Layout

__all__ = ["is_mixed", "layout_of", "layout_words", "recompute_words", "short_words"]


def layout_of(content: Mapping[str, Any]) -> Layout:
    """Read a layout back from JSON."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
    }
    return Layout(**values)


def is_mixed(plan: Mapping[str, Any]) -> bool:
    """Whether a plan's stages run on chips of several kinds, or differ in more than their layers;
    the stages of `explain` are no layout."""
    return "chip" in next(iter(plan.get("stages", [])), {})


def layout_words(plan: Mapping[str, Any]) -> str:
    """Write a plan's layout as `--layout` takes it, or the stages of one over several kinds of
    chips."""
    return _stage_words(plan["stages"]) if is_mixed(plan) else layout_of(plan["layout"]).words()


def short_words(plan: Mapping[str, Any]) -> str:
    """Name a plan in a chart: `#1 tp4 cp2 pp4x20 dp8 mbs1`, recomputation only where there is
    some."""
    layout, rank = plan["layout"], plan.get("rank")
    place = [] if rank is None else [f"#{rank}"]
    if is_mixed(plan):
        return " ".join([*place, _stage_words(plan["stages"])])
    axes = [
        f"{axis}{layout[axis]}"
        for axis in ("tp", "cp", "ep", "dp", "mbs")
        if layout[axis] > 1 or axis in ("tp", "dp", "mbs")
    ]
    axes.insert(1, f"pp{layout['pp']}{'x' + str(layout['vpp']) if layout['vpp'] > 1 else ''}")
    again = recompute_words(layout)
    return " ".join([*place, *axes, *([] if again == "none" else [again])])


def recompute_words(layout: Mapping[str, Any]) -> str:
    """Write what is computed again in the backward pass."""
    how = layout["recompute"]
    if how is None:
        return "differs by stage"
    if how == "selective":
        return "+".join(layout["recompute_modules"])
    layers = layout["recompute_layers"]
    return how if how != "full" or layers is None else f"full {layers}"


def _stage_words(stages: list[Mapping[str, Any]]) -> str:
    """`h800 tp4 13x5 | a800 tp4 5x3`: chip, tensor parallelism, layers of a stage times stages."""
    runs = [
        (key, [stage["layers"] for stage in run])
        for key, run in groupby(stages, key=lambda s: (s["chip"], s["tp"]))
    ]
    return " | ".join(f"{chip} tp{tp} {_layers(layers)}" for (chip, tp), layers in runs)


def _layers(layers: list[int]) -> str:
    counts = [(size, len(list(same))) for size, same in groupby(layers)]
    return "+".join(f"{size}x{count}" if count > 1 else str(size) for size, count in counts)
