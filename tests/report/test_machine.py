"""The machine map and the waterfalls: what they draw is what the plan says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.browser import chromium, opened
from tests.report.answers import plan_answer, plan_of

from meshwright import api
from meshwright.api.report import write_report
from meshwright.report.charts.draw import draw
from meshwright.report.charts.forms import Machine, Op, Timeline, Waterfall
from meshwright.report.charts.machine import DOT, LETTERS, MOST_SQUARES, first_chips, marks_of
from meshwright.report.charts.svg import NARROW, WIDTH
from meshwright.report.parts.computed import timeline_info
from meshwright.report.parts.lost import ideal_s, lost_info, rivals_waterfall_info
from meshwright.report.parts.machine import machine_info
from meshwright.search.request import PlanRequest
from meshwright.values.layout import Layout
from meshwright.values.ranks import RANK_AXES, group_members, stage_ranks

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def machine_of(layout: Layout, *, box: int = 8) -> Machine:
    return Machine(
        key="machine",
        title="A map",
        sentence="By hand.",
        stages=stage_ranks(layout),
        box=box,
        box_word="node",
        exchanges=(),
        step_s=2.0,
    )


SMALL = Layout(tp=2, cp=2, dp=4, pp=2, ep=4, etp=1)
LARGE = Layout(tp=8, cp=2, dp=4096, pp=16, ep=8, etp=1)
"""1,048,576 chips."""


def sum_of(fall: Waterfall) -> float:
    return fall.start[1] + sum(drop.value for drop in fall.drops)


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return api.plan(
        model="llama3-8b", cluster="h100:32", seq_len=8192, gbs=64, pins={"tp": [2], "pp": [2]}
    ).to_dict()


def test_the_way_from_the_peak_to_the_step_is_the_difference(plan: dict[str, Any]) -> None:
    for each in plan["plans"]:
        fall = lost_info(each)
        assert fall.start[1] == pytest.approx(each["mfu"] * each["step_s"])
        assert fall.end[1] == each["step_s"]
        assert sum_of(fall) == pytest.approx(fall.end[1], rel=1e-9)


def test_the_way_between_two_plans_is_their_difference(plan: dict[str, Any]) -> None:
    best, *others = plan["plans"]
    assert others
    for other in others:
        fall = rivals_waterfall_info(best, other)
        assert sum_of(fall) == pytest.approx(other["step_s"], rel=1e-9)
        for drop in fall.drops:
            assert drop.value == other["time"].get(drop.key, 0) - best["time"].get(drop.key, 0)


def test_losses_by_hand() -> None:
    """A step of 2 s at an MFU of 45 %: 0.9 s at the peak, 1.5 s of products, so 0.6 s below it."""
    fall = lost_info(plan_of(1))
    assert ideal_s(plan_of(1)) == pytest.approx(0.9)
    assert [(drop.key, round(drop.value, 9)) for drop in fall.drops] == [
        ("below_peak", 0.6),
        ("tp_comm", 0.3),
        ("bubble", 0.2),
    ]
    assert "+0.600" in draw(fall)
    assert "0.6" in str(fall.data.rows[1][1])


def test_a_rival_that_saves_time_is_hollow_and_says_minus() -> None:
    drawn = draw(rivals_waterfall_info(plan_of(2, longer_s=0.5), plan_of(1)))
    assert "\N{MINUS SIGN}0.500" in drawn
    assert "saves time" in drawn


@pytest.mark.parametrize("rank", [0, 13, 31])
def test_letters_stand_on_the_groups_of_the_rank_order(rank: int) -> None:
    marks = marks_of(machine_of(SMALL), rank)
    assert marks.pop(rank) == DOT
    expected: dict[int, str] = {}
    for axis in RANK_AXES:
        for member in group_members(stage_ranks(SMALL), axis, rank):
            if member != rank:
                expected[member] = expected.get(member, "") + LETTERS[axis]
    assert marks == expected


def test_a_million_chips_are_a_small_picture_with_the_same_groups() -> None:
    machine = machine_of(LARGE)
    starts = first_chips(machine)
    assert LARGE.num_chips == 1_048_576
    assert len(starts) <= MOST_SQUARES
    drawn = draw(machine)
    assert len(drawn) < 150_000
    assert drawn.count('class="cell" x=') == len(starts)
    marks = marks_of(machine, 123_456)
    stage = stage_ranks(LARGE)[1]
    in_stage = [
        place for place, start in enumerate(starts) if stage.first <= start < 2 * stage.count
    ]
    assert all("D" in marks[place] or marks[place] == DOT for place in in_stage)
    assert sum("P" in words for words in marks.values()) == LARGE.pp - 1


def test_exchanges_have_the_plan_s_seconds(plan: dict[str, Any]) -> None:
    best = plan["plans"][0]
    request = PlanRequest.of(plan["request"])
    machine = machine_info(best, api.problem_of(request))
    shown = {one.term: one.step_s for one in machine.exchanges if one.step_s > 0}
    waited = {t: s for t, s in best["time"].items() if t.endswith("_comm") and s > 0}
    assert shown == waited
    drawn = draw(machine, NARROW)
    assert f'viewBox="0 0 {NARROW:.0f} ' in drawn
    assert json.loads(
        re.findall(r'data-machine="([^"]+)"', draw(machine, WIDTH))[0].replace("&quot;", '"')
    )["stages"] == [[s.first, s.tp, s.cp, s.dp, s.ep, s.etp] for s in machine.stages]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def test_the_page_marks_the_same_groups(browser: Browser, tmp_path: Path) -> None:
    axes = {"tp": 2, "cp": 2, "dp": 4, "pp": 2, "vpp": 1, "gbs": 64}
    answer = plan_answer(plan_of(1, **axes), cluster="h100:32")
    page_file = write_report([answer], output=tmp_path / "page.html")
    machine = machine_of(Layout(tp=2, cp=2, dp=4, pp=2))
    with opened(browser, page_file) as (page, said):
        figure = page.locator("figure.machine")
        field = figure.get_by_role("spinbutton", name="Chip")
        for rank in (0, 5, 30):
            field.fill(str(rank))
            found = page.evaluate(
                "() => { const svg = [...document.querySelectorAll('figure.machine svg.chart')]"
                ".find((one) => one.getClientRects().length);"
                " const cells = [...svg.querySelectorAll('g[data-ink] > rect.cell')];"
                " return [...svg.querySelectorAll('.marks rect')].map((rect, k) => ["
                "cells.findIndex((one) => one.getAttribute('x') === rect.getAttribute('x') &&"
                " one.getAttribute('y') === rect.getAttribute('y')),"
                " svg.querySelectorAll('.marks text')[k].textContent]); }"
            )
            assert dict(found) == marks_of(machine, rank)
            assert figure.get_by_role("status").inner_text().startswith(f"Chip {rank}, node ")
        figure.locator("svg.chart:visible g[data-ink] > rect.cell").nth(9).hover()
        assert figure.get_by_role("status").inner_text().startswith("Chip 9, node 1, stage 0.")
        assert said == []


def test_a_long_pipeline_is_drawn_by_how_busy_it_is() -> None:
    """Beyond what is drawn one by one each stage is an outline; nothing of the table is lost."""
    ops = tuple(
        Op(stage=0, kind="F", chunk=0, microbatch=k, start_s=float(k), end_s=k + 0.5)
        for k in range(9000)
    )
    steps = Timeline(
        key="timeline",
        title="Long",
        sentence="By hand.",
        stages=1,
        step_s=9000.0,
        ops=ops,
        opening_s=100.0,
        density=((0.5,) * 240,),
    )
    drawn = draw(steps)
    [names] = re.findall(r'data-ops="([^"]+)"', drawn)
    assert len(names.split()) == 100
    assert drawn.count('<path class="busy"') == 2  # behind the opening, and in the strip
    assert "share that works" in drawn
    assert 'viewBox="0 0 444 36.0"' in drawn  # 100 of 9,000 s, of 40,000
    assert len(steps.data.rows) == 9000


def test_a_pipeline_opens_on_its_warm_up_and_two_rounds(plan: dict[str, Any]) -> None:
    best = plan["plans"][0]
    problem = api.problem_of(PlanRequest.of(plan["request"]))
    steps = timeline_info(best, problem)
    assert isinstance(steps, Timeline)
    assert steps.opening_s is not None
    backs = [op for op in steps.ops if op.stage == 0 and op.kind == "B"]
    within = [op for op in backs if op.end_s <= steps.opening_s]
    assert len(within) == 2 * best["layout"]["pp"] * best["layout"]["vpp"] < len(backs)
    for stage, shares in enumerate(steps.density):
        worked = sum(op.end_s - op.start_s for op in steps.ops if op.stage == stage)
        assert sum(shares) / len(shares) * steps.step_s == pytest.approx(worked)
