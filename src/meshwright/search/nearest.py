"""The nearest valid value of each axis of a layout that breaks a rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

from meshwright.errors import ConfigError
from meshwright.layout import Layout, Layouts
from meshwright.rules import broken_rows, complete_layout
from meshwright.search.problem import Problem

__all__ = ["Mend", "nearest_valid"]

_AXES = ("tp", "pp", "vpp", "cp", "ep", "mbs", "recompute", "sharding", "layers_per_stage")
"""Fields that are changed, one at a time; dp follows."""
_MOST_DEGREE = 256
"""Beyond it no degree of parallelism is tried, but for pp, whose bound is the layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mend:
    """One change after which a layout keeps every rule."""

    axis: str
    value: Any
    """None: the field is left out."""


def nearest_valid(given: Mapping[str, Any], problem: Problem) -> tuple[Mend, ...]:
    """Return, for each axis that mends a layout alone, the valid value that is nearest by ratio; no
    change where the layout is valid."""
    tried: list[tuple[Mend, Layout]] = []
    for mend in _changes(given, problem):
        layout = _completed(
            (
                {**given, mend.axis: mend.value}
                if mend.value is not None
                else _without(given, mend.axis)
            ),
            problem,
        )
        if layout is not None:
            tried.append((mend, layout))
    if not tried:
        return ()
    broken = np.zeros(len(tried), dtype=bool)
    for _, rows in broken_rows(Layouts.of(layout for _, layout in tried), problem.case):
        broken |= rows
    valid = [mend for (mend, _), wrong in zip(tried, broken, strict=True) if not wrong]
    nearest: dict[str, Mend] = {}
    for mend in valid:  # in order of distance
        nearest.setdefault(mend.axis, mend)
    return tuple(nearest.values())


def _changes(given: Mapping[str, Any], problem: Problem) -> Iterable[Mend]:
    model = problem.setting.model
    most = {
        "pp": model.total_layers,
        "vpp": model.total_layers,
        "ep": model.moe.num_experts if model.moe is not None else 1,
    }
    for axis in _AXES:
        if axis == "layers_per_stage":
            values: list[Any] = [None] if given.get(axis) is not None else []
        elif axis == "recompute":
            values = [
                word
                for word in ("none", "full")
                if word != given.get(axis, "none") and "recompute_modules" not in given
            ]
        elif axis == "sharding":
            values = [None] if axis in given else []
        else:
            now = int(given.get(axis) or 1)
            sizes = range(1, min(most.get(axis, _MOST_DEGREE), problem.num_chips) + 1)
            values = sorted(
                (size for size in sizes if size != now),
                key=lambda size: (abs(log2(size / now)), size),
            )
        yield from (Mend(axis=axis, value=value) for value in values)


def _without(given: Mapping[str, Any], axis: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != axis}


def _completed(given: Mapping[str, Any], problem: Problem) -> Layout | None:
    setting = problem.setting
    try:
        return complete_layout(
            dict(given),
            model=setting.model,
            work=setting.work,
            num_chips=problem.num_chips,
            stack=setting.stack,
        )
    except ConfigError:
        return None
