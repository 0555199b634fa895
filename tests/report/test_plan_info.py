from __future__ import annotations

from typing import Any

import pytest
from tests.report.answers import plan_answer, plan_of

from meshwright.report.parts.plan import (
    plan_answer_info,
    plan_tiles_info,
    plans_info,
    rejected_info,
    sources_info,
    time_info,
    whole_memory_info,
)

ANSWER = plan_answer(
    plan_of(1),
    plan_of(
        2, longer_s=0.5, pp=4, dp=1, recompute="selective", recompute_modules=["layernorm", "mlp"]
    ),
)


def column(grid: Any, key: str) -> list[Any]:
    at = [each.key for each in grid.columns].index(key)
    return [row[at] for row in grid.rows]


def test_the_answer_is_one_sentence_with_the_figures_that_decide() -> None:
    # 64 sequences of 8192 tokens in 2 s on 16 chips: 16,384 tokens/s a chip.
    assert (
        plan_answer_info(ANSWER, limit_gib=79.1)
        == "Run llama3-8b on h100:16 with tp=4, sp=1, pp=2, dp=2, sharding=zero1, mbs=1, gbs=64: a"
        " step takes 2.00 s (80 %: 1.60 to 3.00 s), 16,400 tokens/s a GPU, 45.0 % MFU, 40.0 of"
        " 79.1 GiB on the fullest chip."
    )


def test_an_answer_of_none_names_the_nearest_miss_and_what_would_do() -> None:
    miss = {
        "layout": plan_of(1)["layout"],
        "over_gib": 3.25,
        "remedies": [{"change": "more chips: --cluster h100:32"}],
    }
    answer = {**plan_answer(), "search": {"layouts": 9, "seconds": 0.1, "nearest_miss": miss}}
    words = plan_answer_info(answer, limit_gib=79.1)
    assert words.startswith("llama3-8b on h100:16: no layout fits; the nearest, tp=4,sp=1,pp=2")
    assert words.endswith(
        "needs 3.25 GiB more than a chip has. more chips: --cluster h100:32 would do."
    )
    assert [tile.title for tile in plan_tiles_info(answer, limit_gib=79.1)] == ["Layouts priced"]


def test_the_table_has_every_plan_with_its_figures_and_leaves_out_axes_that_nobody_uses() -> None:
    grid = plans_info(ANSWER)
    keys = [each.key for each in grid.columns]
    assert keys[:7] == ["rank", "layout", "tp", "pp", "dp", "mbs", "recompute"]
    shown = [each.key for each in grid.columns if not each.hidden]
    assert shown[:5] == ["rank", "layout", "step_s", "likely", "beats_next"]
    assert column(grid, "recompute") == ["none", "layernorm+mlp"]
    assert column(grid, "step_s") == [2.0, 2.5]
    assert column(grid, "mfu_percent") == pytest.approx([45.0, 36.0])
    assert column(grid, "layout")[0] == "tp=4,sp=1,pp=2,dp=2,sharding=zero1,mbs=1,gbs=64"
    assert grid.marked == 0


def test_time_is_stacked_by_term_and_each_bar_sums_to_its_step() -> None:
    stack = time_info(ANSWER)
    assert [part.key for part in stack.series] == [
        "matmul",
        "tp_comm",
        "bubble",
    ]  # attention is nothing anywhere
    assert [bar.label for bar in stack.bars] == [
        "#1 tp4 pp2 dp2 mbs1",
        "#2 tp4 pp4 dp1 mbs1 layernorm+mlp",
    ]
    assert [bar.total for bar in stack.bars] == [2.0, 2.5]
    assert (stack.bars[0].low, stack.bars[0].high) == (1.6, 3.0)
    assert "matrix products are 75 % of the best plan's" in stack.sentence


def test_memory_is_stacked_against_the_line_of_the_card() -> None:
    stack = whole_memory_info(ANSWER, limit_gib=79.1)
    assert (stack.limit, [bar.total for bar in stack.bars]) == (79.1, [40.0, 40.0])
    assert stack.data.rows[0] == ("#1 tp4 pp2 dp2 mbs1", 10.0, 30.0, 40.0)


def test_rejections_and_sources_are_told_as_the_plan_tells_them() -> None:
    assert rejected_info(ANSWER).rows[0] == ("memory: more than a chip has", 1200)
    rows = {str(row[0]): str(row[1]) for row in sources_info(ANSWER["plans"][0]).rows}
    assert rows["75 % of the step"] == "tables that were measured on this chip"
    assert rows["step time, against measured runs"].startswith("80 % of published runs took")
