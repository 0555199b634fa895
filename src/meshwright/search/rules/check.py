"""Hold layouts against all rules: columns for the search, one layout with messages for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.search.rules.experts import (
    EXPERT_RULES,
    PROGRAM_RULES,
    RECOMPUTE_RULES,
    usable_modules,
)
from meshwright.search.rules.grid import GRID_RULES
from meshwright.search.rules.host import HOST_RULES
from meshwright.search.rules.pipeline import BATCH_RULES, PIPELINE_RULES
from meshwright.search.rules.rule import Bools, Rule, RuleCase, Violation, nearest_words
from meshwright.search.rules.software import stack_rules
from meshwright.search.rules.split import even_split, own_split
from meshwright.values.errors import ConfigError, LayoutError
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "ALL_RULES",
    "broken_rows",
    "check_layout",
    "complete_layout",
    "explicit_layers",
    "require_valid",
]

ALL_RULES: tuple[Rule, ...] = (
    *GRID_RULES,
    *HOST_RULES,
    *PROGRAM_RULES,
    *PIPELINE_RULES,
    *EXPERT_RULES,
    *BATCH_RULES,
    *RECOMPUTE_RULES,
)
"""In the order in which they are reported."""


def broken_rows(
    layouts: Layouts, case: RuleCase, rules: tuple[Rule, ...] = ALL_RULES
) -> Iterator[tuple[Rule, Bools]]:
    """Yield each rule of the case's software with the rows (N,) that break it."""
    for rule in rules:
        if rule.holds(case):
            kept = np.asarray(rule.keeps(layouts, case), dtype=bool)
            yield rule, ~np.broadcast_to(kept, (len(layouts),))


def check_layout(layout: Layout, case: RuleCase) -> list[Violation]:
    """Return every rule that a layout breaks, in the order of ALL_RULES."""
    broken = [rule for rule, rows in broken_rows(Layouts.of([layout]), case) if rows[0]]
    return [
        Violation(key=rule.key, sentence=rule.sentence, message=rule.message(layout, case))
        for rule in broken
    ]


def require_valid(layout: Layout, case: RuleCase) -> None:
    """Raise LayoutError with the message of every broken rule in one line."""
    if found := check_layout(layout, case):
        raise LayoutError("; also: ".join(violation.message for violation in found))


def complete_layout(fields: Mapping[str, Any], case: RuleCase) -> Layout:
    """Return the layout of some given fields (see `parse_layout`) with the rest filled in; what is
    given is never changed.

    dp is num_chips / (tp * cp * pp), gbs that of the workload; sp is on with tp > 1; sharding is
    the stack's usual one, else zero1, or zero3 in an FSDP stack; selective recompute takes the
    stack's first module; layers of stages stay open but where the software has a rule of its own.
    """
    given, work, rules = dict(fields), case.work, stack_rules(case.stack)
    split = int(given.get("tp", 1)) * int(given.get("cp", 1)) * int(given.get("pp", 1))
    if "dp" not in given:
        given["dp"] = _data_parallel(split, given, case.num_chips)
    if "gbs" not in given:
        if work.gbs is None:
            raise ConfigError("gbs is not given; add gbs=... to the layout, or --gbs")
        given["gbs"] = work.gbs
    elif work.gbs is not None and given["gbs"] != work.gbs:
        raise ConfigError(
            f"gbs={given['gbs']} in the layout and gbs={work.gbs} beside it; give it once"
        )
    given.setdefault("sp", int(given.get("tp", 1)) > 1)
    whole = "zero1" if case.stack.family == "megatron" else "zero3"
    given.setdefault("sharding", "hybrid" if "shard_size" in given else rules.sharding or whole)
    if given.get("recompute") == "selective" and not given.get("recompute_modules"):
        known = usable_modules(case.model, rules.recompute_modules)
        given["recompute_modules"] = ("ops",) if "ops" in known else tuple(known[:1])
    elif given.get("recompute_modules") and "recompute" not in given:
        given["recompute"] = "selective"
    if rules.splits == "cost" and "layers_per_stage" not in given:
        given["layers_per_stage"] = own_split(case.model, pp=int(given.get("pp", 1)))
    return Layout(**given)


def _data_parallel(split: int, given: dict[str, Any], num_chips: int) -> int:
    if split < 1 or num_chips % split:
        words = " * ".join(f"{axis}={given.get(axis, 1)}" for axis in ("tp", "cp", "pp"))
        near = nearest_words(num_chips, max(split, 1))
        raise LayoutError(
            f"{words} = {split} does not divide {num_chips} chips; take {near} chips, or other"
            " sizes"
        )
    return num_chips // split


def explicit_layers(layout: Layout, model: ModelSpec) -> Layout:
    """Return the layout with its uneven split written out; an even one is left alone."""
    if layout.layers_per_stage is not None or model.total_layers % (layout.pp * layout.vpp) == 0:
        return layout
    return replace(
        layout, layers_per_stage=even_split(model.total_layers, pp=layout.pp, vpp=layout.vpp)
    )
