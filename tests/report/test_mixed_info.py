from __future__ import annotations

from typing import Any

import pytest

from meshwright import api
from meshwright.api.report import find_chart, report_parts
from meshwright.report.charts.forms import Machine, Stack, Timeline
from meshwright.search.mixed.front import mixed_layout_of
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.search.request import PlanRequest

FIELDS: dict[str, Any] = {
    "model": "llama2-13b",
    "cluster": "a800:8,h800:8",
    "seq_len": 4096,
    "gbs": 64,
    "top": 3,
}


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    return api.plan(**FIELDS).to_dict()


def test_stages_read_back_hold_what_the_plan_said(answer: dict[str, Any]) -> None:
    [part] = report_parts([answer])
    stages = find_chart([part], "stages")
    assert isinstance(stages, Stack)
    assert [bar.total for bar in stages.bars] == pytest.approx(
        answer["plans"][0]["peak_memory_gib"], rel=1e-9
    )
    assert stages.limit == pytest.approx(
        min(p.setting.limit_bytes for p in resolve_mixed(PlanRequest.of(answer["request"])).parts)
        / 2**30
    )


def test_the_pipeline_runs_as_long_as_its_terms_say(answer: dict[str, Any]) -> None:
    best = answer["plans"][0]
    steps = find_chart(report_parts([answer]), "timeline")
    assert isinstance(steps, Timeline)
    once = sum(best["time"][term] for term in ("dp_comm", "optimizer", "overhead"))
    assert steps.step_s == pytest.approx(best["step_s"] - once, rel=1e-6)
    assert steps.stages == len(best["stages"])


def test_what_is_for_one_kind_of_chip_is_said_to_be_missing(answer: dict[str, Any]) -> None:
    [part] = report_parts([answer])
    assert "for one kind of chip" in part.notes[0]
    assert {chart.key for chart in part.charts} >= {"time", "memory", "stages", "timeline", "front"}


def test_chunks_read_back_are_those_of_the_plan(answer: dict[str, Any]) -> None:
    problem = resolve_mixed(PlanRequest.of(answer["request"]))
    stage = answer["plans"][0]["stages"][0] | {"layers": 20}
    layout = answer["plans"][0]["layout"] | {"vpp": 2}
    unlike, even = (
        {"stages": [stage, stage], "layout": layout | {"layers_per_stage": split}}
        for split in ([11, 9, 9, 11], [10] * 4)
    )
    assert mixed_layout_of(unlike, problem).chunks == (11, 9, 9, 11)
    assert mixed_layout_of(even, problem).chunks is None


def test_the_map_of_several_kinds_has_the_plan_s_stages_and_seconds(answer: dict[str, Any]) -> None:
    best = answer["plans"][0]
    machine = find_chart(report_parts([answer]), "machine")
    assert isinstance(machine, Machine)
    layout = mixed_layout_of(best, resolve_mixed(PlanRequest.of(answer["request"])))
    assert [stage.count for stage in machine.stages] == [
        stage.tp * stage.dp * layout.cp for stage in layout.stages
    ]
    shown = {one.term: one.step_s for one in machine.exchanges if one.step_s > 0}
    assert shown == {t: s for t, s in best["time"].items() if t.endswith("_comm") and s > 0}
    assert all("a800 " in one.link and "h800 " in one.link for one in machine.exchanges)
