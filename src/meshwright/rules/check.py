"""Hold layouts against all rules: columns for the search, one layout with messages for people."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.errors import LayoutError
from meshwright.layout import Layout, Layouts
from meshwright.models.spec import ModelSpec
from meshwright.rules._rule import Bools, Rule, RuleCase, Violation
from meshwright.rules.experts import EXPERT_RULES, RECOMPUTE_RULES
from meshwright.rules.grid import GRID_RULES
from meshwright.rules.pipeline import BATCH_RULES, PIPELINE_RULES
from meshwright.rules.program import PROGRAM_RULES
from meshwright.rules.software import NEWEST_MEGATRON
from meshwright.stack import Stack
from meshwright.workload import Workload

__all__ = ["ALL_RULES", "broken_rows", "check_layout", "require_valid"]

ALL_RULES: tuple[Rule, ...] = (
    *GRID_RULES,
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
            yield (
                rule,
                ~np.broadcast_to(
                    np.asarray(rule.keeps(layouts, case), dtype=bool), (len(layouts),)
                ),
            )


def check_layout(
    layout: Layout,
    *,
    model: ModelSpec,
    work: Workload,
    num_chips: int,
    stack: Stack,
    megatron_version: str = NEWEST_MEGATRON,
) -> list[Violation]:
    """Return every rule that a layout breaks, in the order of ALL_RULES; an empty list is a valid
    layout."""
    case = RuleCase(
        model=model, work=work, num_chips=num_chips, stack=stack, megatron_version=megatron_version
    )
    broken = [rule for rule, rows in broken_rows(Layouts.of([layout]), case) if rows[0]]
    return [
        Violation(key=rule.key, sentence=rule.sentence, message=rule.message(layout, case))
        for rule in broken
    ]


def require_valid(
    layout: Layout,
    *,
    model: ModelSpec,
    work: Workload,
    num_chips: int,
    stack: Stack,
    megatron_version: str = NEWEST_MEGATRON,
) -> None:
    """Raise LayoutError with the message of every broken rule in one line."""
    found = check_layout(
        layout,
        model=model,
        work=work,
        num_chips=num_chips,
        stack=stack,
        megatron_version=megatron_version,
    )
    if found:
        raise LayoutError("; also: ".join(violation.message for violation in found))
