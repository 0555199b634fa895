"""Published layouts lie in the space that `plan` searches for their software, or it is written here
why not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.runs.measured.rows import Case, read_row
from meshwright.search.axes import MOST_UNEVEN_VPP, axes_of
from meshwright.search.problem import Problem
from meshwright.values.errors import MeshwrightError
from meshwright.values.layout import RECOMPUTES, SCHEDULES, SHARDINGS, Layout, module_bits
from meshwright_truth.plan_path import named_stack, priced, stack_lines
from meshwright_truth.verdicts import read_measured

TRUTH = Path(__file__).parents[2] / "truth"
A_TABLE = 4
"""Layouts of a software that are looked at in each table, from its first to its last."""


def outside(layout: Layout, problem: Problem) -> Iterator[str]:
    """Name each axis whose value a search does not try, with the value."""
    axes = axes_of(problem)
    for name in ("tp", "cp", "pp", "ep", "mbs"):
        if getattr(layout, name) not in getattr(axes, name):
            yield f"{name}={getattr(layout, name)}"
    if SHARDINGS.index(layout.sharding) not in axes.sharding:
        yield f"sharding={layout.sharding}"
    if SCHEDULES.index(layout.schedule) not in axes.schedule:
        yield f"schedule={layout.schedule}"
    even = problem.setting.model.total_layers % (layout.pp * layout.vpp) == 0
    if layout.vpp not in (axes.vpp or (layout.vpp,)) or (layout.vpp > MOST_UNEVEN_VPP and not even):
        yield f"vpp={layout.vpp}"
    if layout.ep > 1 and layout.expert_tp not in (1, layout.tp):
        yield f"etp={layout.expert_tp}"
    if layout.tp > 1 and not layout.sp and not axes.either_sp:
        yield "sp=0"
    modules = module_bits(layout.recompute_modules)
    tried = {(one.kind, one.modules) for one in axes.recomputations}
    if (RECOMPUTES.index(layout.recompute), modules) not in tried:
        yield f"recompute={'+'.join((layout.recompute, *layout.recompute_modules))}"


def published(stack: str) -> Iterator[tuple[str, Layout, Problem]]:
    """Each table's sample of layouts of a software, as `plan` takes them."""
    for table in read_measured(sorted(TRUTH.glob("*.csv"))).kept:
        rows = [row for row in table.rows if named_stack(row, table=table.name) and row["gbs"]]
        rows = [
            row
            for row in rows
            if (named_stack(row, table=table.name) or "").partition("@")[0] == stack
        ]
        for row in rows[:: max(1, len(rows) // A_TABLE)][:A_TABLE]:
            case = read_row(row, source=table.name)
            if not isinstance(case, Case) or case.task != "pretrain" or case.machines.mixed:
                continue
            try:
                problem, quote = priced(row, case, stack=named_stack(row, table=table.name) or "")
            except MeshwrightError:
                continue
            yield case.row_id, quote.layout, problem


_SAME_BYTES = (
    "sequence parallelism sends as many bytes as the all-reduce that it stands for, and keeps less"
    " (arXiv:2205.05198, section 4.2.2)"
)
NOT_SEARCHED = {
    ("megatron", "sharding=none"): "the distributed optimizer sends as many bytes and holds less",
    ("megatron", "sp=0"): _SAME_BYTES,
    ("megatron-legacy", "sp=0"): _SAME_BYTES,
    ("eager", "sp=0"): _SAME_BYTES,
}
"""Values of published layouts that no search tries, and why. A pin takes each of them."""


@pytest.mark.parametrize("stack", sorted({line.stack.partition("@")[0] for line in stack_lines()}))
def test_published_layouts_lie_in_what_plan_searches(stack: str) -> None:
    missed: dict[str, list[str]] = defaultdict(list)
    for row_id, layout, problem in published(stack):
        for value in outside(layout, problem):
            missed[value].append(row_id)
    reasons = {value for name, value in NOT_SEARCHED if name == stack}
    assert missed.keys() == reasons, dict(missed)
