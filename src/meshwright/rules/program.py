"""Rules of the training software: the kinds of parallelism that it has, and where it computes in
half precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshwright.layout import SHARDINGS, Layout, Layouts
from meshwright.rules._rule import Rule, RuleCase, some
from meshwright.rules.software import stack_rules, stacks_with_axis
from meshwright.rules.split import own_split

__all__ = ["PROGRAM_RULES"]

_WITHOUT = {"tp": 1, "sp": 0, "pp": 1, "vpp": 1, "cp": 1, "ep": 1}
"""What an axis is where a software does not have it; etp is tp."""


def _lacking(layouts: Layouts, axis: str) -> Any:
    """Rows that do without the axis."""
    return layouts.etp == layouts.tp if axis == "etp" else getattr(layouts, axis) == _WITHOUT[axis]


def _keeps_axes(layouts: Layouts, case: RuleCase) -> Any:
    has = stack_rules(case.stack).axes
    good = np.ones(len(layouts), dtype=bool)
    for axis in (*_WITHOUT, "etp"):
        if axis not in has:
            good &= _lacking(layouts, axis)
    return good


def _axes_message(layout: Layout, case: RuleCase) -> str:
    has, row = stack_rules(case.stack).axes, Layouts.of([layout])
    axis = next(
        axis for axis in (*_WITHOUT, "etp") if axis not in has and not _lacking(row, axis).all()
    )
    value = int(getattr(layout, axis)) if axis != "etp" else layout.expert_tp
    without = f"etp={layout.tp}" if axis == "etp" else f"{axis}={_WITHOUT[axis]}"
    return (
        f"{axis}={value}: stack {case.stack.name} does not have it, so {without}; stacks with it:"
        f" {some(stacks_with_axis(axis))}"
    )


def _keeps_half(layouts: Layouts, case: RuleCase) -> Any:
    if not stack_rules(case.stack).half_by_sharding or case.work.precision in ("fp32", "tf32"):
        return True
    sharded = (layouts.sharding != SHARDINGS.index("none")) & (layouts.dp * layouts.cp > 1)
    return sharded | ((layouts.tp == 1) & (layouts.pp == 1))


def _half_message(layout: Layout, case: RuleCase) -> str:
    given = (
        f"tp={layout.tp}, pp={layout.pp}, dp={layout.dp}, cp={layout.cp},"
        f" sharding={layout.sharding}"
    )
    words = (
        f"precision={case.work.precision} with {given}: stack {case.stack.name} casts in sharded"
        " data parallelism and would run in fp32"
    )
    return f"{words}; dp=2 with sharding=zero3, or precision=fp32"


def _keeps_cut(layouts: Layouts, case: RuleCase) -> Any:
    if stack_rules(case.stack).splits != "cost":
        return True
    own = {int(pp): own_split(case.model, pp=int(pp)) for pp in np.unique(layouts.pp)}
    given = layouts.chunk_layers or (None,) * len(layouts)
    return np.array(
        [_is_own(own[int(pp)], split, case) for pp, split in zip(layouts.pp, given, strict=True)],
        dtype=bool,
    )


def _is_own(own: tuple[int, ...] | None, split: tuple[int, ...] | None, case: RuleCase) -> bool:
    if own is None:
        return True
    each, rest = divmod(case.model.num_layers, len(own))
    even = None if rest else (each,) * len(own)
    return min(own[:-1]) > 0 and own == (split or even)


def _cut_message(layout: Layout, case: RuleCase) -> str:
    own = own_split(case.model, pp=layout.pp) or ()
    if min(own[:-1]) < 1:
        return (
            f"pp={layout.pp}: stack {case.stack.name} cuts by cost and would leave a stage without"
            f" layers; pp={max(1, layout.pp // 2)}"
        )
    return (
        f"stack {case.stack.name} cuts by cost, and nothing changes that:"
        f" layers_per_stage={'+'.join(map(str, own))} with pp={layout.pp}"
    )


PROGRAM_RULES = (
    Rule(
        key="software_axis",
        sentence="the training software has these kinds of parallelism",
        columns=("tp", "sp", "pp", "vpp", "cp", "ep", "etp"),
        keeps=_keeps_axes,
        message=_axes_message,
        source="presets/stack_rules.csv",
    ),
    Rule(
        key="half_precision",
        sentence="software that casts in sharded data parallelism has two ranks to shard over",
        columns=("tp", "pp", "dp", "cp", "sharding"),
        keeps=_keeps_half,
        message=_half_message,
        source="torchtitan config/configs.py: mixed_precision_param",
    ),
    Rule(
        key="own_cut",
        sentence="stages have the layers that the training software gives them",
        columns=("pp", "layers_per_stage"),
        keeps=_keeps_cut,
        message=_cut_message,
        source="nanotron models/base.py build_model (2411b022)",
    ),
)
