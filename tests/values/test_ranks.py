"""Groups of ranks against a grid of them, cut as the order of the axes says."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import MixedLayout, StageLayout
from meshwright.values.ranks import RANK_AXES, RankAxis, group_members, stage_ranks

LAYOUTS = (
    Layout(tp=2, cp=2, dp=3, pp=4),
    Layout(tp=4, dp=8, pp=2, ep=8, etp=1),
    Layout(tp=2, cp=2, dp=4, pp=3, ep=4, etp=2),
    Layout(dp=16),
)


def grid_of(layout: Layout, axis: RankAxis) -> set[tuple[int, ...]]:
    """All groups of an axis: ranks written into a grid, slowest axis first, read along one."""
    numbers = np.arange(layout.num_chips)
    if axis == "ep":
        etp = layout.expert_tp
        copies = layout.tp * layout.cp * layout.dp // (layout.ep * etp)
        grid = numbers.reshape(layout.pp, copies, layout.ep, etp)
        along = 2
    else:
        grid = numbers.reshape(layout.pp, layout.dp, layout.cp, layout.tp)
        along = ("pp", "dp", "cp", "tp").index(axis)
    rows = np.moveaxis(grid, along, -1).reshape(-1, grid.shape[along])
    return {tuple(row) for row in rows.tolist()}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", RANK_AXES)
def test_groups_are_the_lines_of_a_grid(layout: Layout, axis: RankAxis) -> None:
    stages = stage_ranks(layout)
    found = {tuple(group_members(stages, axis, rank)) for rank in range(layout.num_chips)}
    assert found == grid_of(layout, axis)


def test_a_worked_example() -> None:
    stages = stage_ranks(Layout(tp=2, cp=2, dp=2, pp=2))
    assert list(group_members(stages, "tp", 13)) == [12, 13]
    assert list(group_members(stages, "cp", 13)) == [13, 15]
    assert list(group_members(stages, "dp", 13)) == [9, 13]
    assert list(group_members(stages, "pp", 13)) == [5, 13]


def test_stages_of_several_kinds_follow_each_other() -> None:
    stages = tuple(
        StageLayout(pool=pool, chip=chip, layers=8, tp=tp, sp=tp > 1, dp=dp, mbs=1)
        for pool, chip, tp, dp in ((0, "h800", 2, 4), (1, "a800", 4, 4))
    )
    ranks = stage_ranks(MixedLayout(stages=stages, gbs=16))
    assert [(stage.first, stage.count) for stage in ranks] == [(0, 8), (8, 16)]
    assert list(group_members(ranks, "tp", 9)) == [8, 9, 10, 11]
    assert list(group_members(ranks, "dp", 9)) == [9, 13, 17, 21]
    assert list(group_members(ranks, "pp", 9)) == [9]  # no rank of the other stage is its own
