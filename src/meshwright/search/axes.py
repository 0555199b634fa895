"""Which values each axis of the search may take: the user's pins, else all within bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np

from meshwright.search.problem import Problem
from meshwright.search.rules.check import broken_rows, complete_layout
from meshwright.search.rules.experts import usable_modules
from meshwright.search.rules.rule import divisors
from meshwright.search.rules.software import stack_rules
from meshwright.values.errors import ConfigError
from meshwright.values.layout import (
    OFFLOADS,
    OPTIMIZERS,
    RECOMPUTES,
    SCHEDULES,
    SHARDINGS,
    Layout,
    Layouts,
    module_bits,
    parse_layout,
)
from meshwright.values.models.spec import ModelSpec

__all__ = ["Axes", "Mend", "Recomputation", "axes_of", "nearest_valid"]

DOMAINS_PER_TP = 2
"""Tensor parallelism is searched up to this many fast domains: beyond them a pipeline or data
parallelism carries the same cut with a hundredth of the traffic (Narayanan et al. 2021,
arXiv:2104.04473, section 5)."""
LEAST_TOKENS_PER_CP = 1024
"""Context parallelism is searched while each rank keeps this many tokens of a sequence."""
MOST_MBS = 16
"""Micro batches beyond it fill no kernel better."""
MOST_UNEVEN_VPP = 8
"""Chunks per stage are searched to this many where the split is uneven; even ones have no bound."""
BLOCK_STEPS = 8
"""Full recompute by blocks is searched in eighths of a chunk's layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recomputation:
    """One way to recompute; `eighths`: by block, the layers of a chunk in BLOCK_STEPS parts."""

    kind: int
    """Index into RECOMPUTES."""
    block: int = 0
    layers: int = -1
    modules: int = 0
    eighths: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Values to try; None where they depend on the other axes."""

    tp: tuple[int, ...]
    cp: tuple[int, ...]
    pp: tuple[int, ...]
    ep: tuple[int, ...]
    sharding: tuple[int, ...]
    mbs: tuple[int, ...]
    schedule: tuple[int, ...]
    recomputations: tuple[Recomputation, ...]
    offload: tuple[int, ...]
    optimizer: tuple[int, ...]
    sp: tuple[int, ...] | None
    """None: on with tp > 1."""
    either_sp: bool
    """Whether it is tried without, too: the software's own configurations leave it off."""
    etp: tuple[int, ...] | None
    """None: 1 and tp."""
    vpp: tuple[int, ...] | None
    """None: every even split, and uneven ones up to MOST_UNEVEN_VPP."""
    dp: tuple[int, ...] | None
    shard_size: tuple[int, ...] | None
    """None: divisors of dp * cp that are whole domains or divide one."""
    grouped: tuple[int, ...]
    """Shardings beside hybrid whose groups may be smaller than all ranks."""
    splits: tuple[tuple[int, ...], ...] | None
    """Pinned layers per stage."""


def axes_of(problem: Problem) -> Axes:
    """Return the axes of a problem."""
    pins = {
        key: [_typed(key, value) for value in values]
        for key, values in problem.request.pins.items()
    }
    model, chips = problem.setting.model, problem.num_chips
    rules = stack_rules(problem.setting.stack)
    seq_len = problem.setting.work.seq_len
    tp_most = DOMAINS_PER_TP * problem.setting.pool.node.domain_size
    splits = pins.get("layers_per_stage")
    whole = problem.ways == "all"

    def searched(axis: str, values: Iterable[int]) -> tuple[int, ...]:
        return _pinned(pins, axis) or (tuple(values) if axis in rules.axes else (1,))

    return Axes(
        tp=searched("tp", divisors(chips, tp_most)),
        cp=searched(
            "cp", (cp for cp in divisors(chips) if cp == 1 or seq_len // cp >= LEAST_TOKENS_PER_CP)
        ),
        pp=searched("pp", divisors(chips, model.total_layers)),
        ep=searched("ep", divisors(model.moe.num_experts) if model.moe is not None else (1,)),
        sharding=_pinned(pins, "sharding", SHARDINGS)
        or _indices(SHARDINGS, rules.searched_shardings),
        mbs=_pinned(pins, "mbs") or _micro_batches(problem),
        schedule=_pinned(pins, "schedule", SCHEDULES)
        or _indices(SCHEDULES, rules.searched_schedules),
        recomputations=_recomputations(pins, model, problem),
        offload=_pinned(pins, "offload", OFFLOADS)
        or _indices(OFFLOADS, rules.offloads if whole else rules.searched_offloads),
        optimizer=_pinned(pins, "optimizer", OPTIMIZERS)
        or _indices(OPTIMIZERS, rules.optimizers if whole else rules.optimizers[:1]),
        sp=_pinned(pins, "sp"),
        either_sp="sp" in rules.axes and not rules.sequence_parallel,
        etp=_pinned(pins, "etp"),
        vpp=_pinned(pins, "vpp") or (None if "vpp" in rules.axes else (1,)),
        dp=_pinned(pins, "dp"),
        shard_size=_pinned(pins, "shard_size"),
        grouped=tuple(SHARDINGS.index(name) for name in rules.grouped_shardings),
        splits=tuple(splits) if splits else None,
    )


def _indices(choices: tuple[str, ...], words: tuple[str, ...]) -> tuple[int, ...]:
    """Places of words among the choices, in the order of the choices."""
    return tuple(choices.index(word) for word in choices if word in words)


def _typed(key: str, value: int | str) -> Any:
    [parsed] = parse_layout(f"{key}={value}").values()
    return parsed


def _pinned(
    pins: dict[str, list[Any]], key: str, choices: tuple[str, ...] | None = None
) -> tuple[int, ...] | None:
    """Return the pinned values as integers, None where there are none."""
    if key not in pins:
        return None
    if choices is None:
        values = [int(value) for value in pins[key]]
        if min(values) < (0 if key == "sp" else 1):
            raise ConfigError(f"pins: {key}={min(values)}: expected a whole number of 1 or more")
        if max(values) > 2**40:
            raise ConfigError(f"pins: {key}={max(values)}: expected a number below 2**40")
        return tuple(values)
    for value in pins[key]:
        if value not in choices:
            raise ConfigError(f"pins: {key}={value}: expected one of {', '.join(choices)}")
    return tuple(choices.index(value) for value in pins[key])


def _micro_batches(problem: Problem) -> tuple[int, ...]:
    """Divisors of a given batch; powers of two where the batch is searched."""
    if problem.request.gbs is not None:
        return tuple(divisors(problem.request.gbs, MOST_MBS))
    return tuple(m for m in (1, 2, 4, 8, 16) if m <= problem.max_gbs)


def _recomputations(
    pins: dict[str, list[Any]], model: ModelSpec, problem: Problem
) -> tuple[Recomputation, ...]:
    kinds = _pinned(pins, "recompute", RECOMPUTES) or (
        () if {"recompute_modules", "recompute_layers"} & set(pins) else (0, 1, 2)
    )
    found: list[Recomputation] = []
    if RECOMPUTES.index("none") in kinds:
        found.append(Recomputation(kind=RECOMPUTES.index("none")))
    if RECOMPUTES.index("selective") in kinds or "recompute_modules" in pins:
        found += [
            Recomputation(kind=RECOMPUTES.index("selective"), modules=bits)
            for bits in _module_sets(pins, model, problem)
        ]
    if RECOMPUTES.index("full") in kinds or "recompute_layers" in pins:
        found += _full(pins, by_blocks=stack_rules(problem.setting.stack).full_by_blocks)
    return tuple(found)


def _module_sets(pins: dict[str, list[Any]], model: ModelSpec, problem: Problem) -> list[int]:
    rules = stack_rules(problem.setting.stack)
    fits = set(usable_modules(model, rules.recompute_modules))
    sets = pins.get("recompute_modules") or [
        modules for modules in rules.searched_modules if set(modules) <= fits
    ]
    return [module_bits(modules) for modules in sets]


def _full(pins: dict[str, list[Any]], *, by_blocks: bool) -> list[Recomputation]:
    """Full recompute: all layers, and by blocks of some where the software can or a pin asks."""
    full, methods = (
        RECOMPUTES.index("full"),
        pins.get(
            "recompute_method",
            ["uniform", "block"] if by_blocks or "recompute_layers" in pins else ["uniform"],
        ),
    )
    counts = pins.get("recompute_layers")
    if counts is not None:
        return [
            Recomputation(kind=full, block=int(method == "block"), layers=count)
            for method in methods
            for count in counts
        ]
    found = [Recomputation(kind=full)] if "uniform" in methods else []
    if "block" in methods:
        found += [
            Recomputation(kind=full, block=1, eighths=eighths) for eighths in range(1, BLOCK_STEPS)
        ]
        found += [] if "uniform" in methods else [Recomputation(kind=full, block=1)]
    return found


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
        rest = {key: value for key, value in given.items() if key != mend.axis}
        changed = rest if mend.value is None else {**rest, mend.axis: mend.value}
        if (layout := _completed(changed, problem)) is not None:
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


def _completed(given: Mapping[str, Any], problem: Problem) -> Layout | None:
    try:
        return complete_layout(given, problem.case)
    except ConfigError:
        return None
