"""What a layout leaves untold widens the intervals of its price, and is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.api import problem_of
from meshwright.search.problem import Problem, ask
from meshwright.search.request import PlanRequest
from meshwright.trust.intervals import interval

ONE = 1.0


@pytest.fixture
def problem() -> Problem:
    return problem_of(PlanRequest(model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=64))


def ends(problem: Problem) -> tuple[float, float]:
    return problem.setting.intervals_at(step_s=ONE, peak_bytes=ONE).peak_bytes


@pytest.mark.parametrize(
    ("layout", "untold"),
    [
        ("tp=2,mbs=1", ("recompute",)),
        ("tp=2", ("micro batch", "recompute")),
        ("tp=2,mbs=1,recompute=none", ()),
        ("tp=2,sp=1,dp=8,sharding=zero1,mbs=1,gbs=64", ()),
    ],
)
def test_what_a_layout_does_not_tell(
    layout: str, untold: tuple[str, ...], problem: Problem
) -> None:
    assert ask(layout, problem).problem.setting.assumptions == untold


def test_it_widens_the_intervals_and_the_room_left_free(problem: Problem) -> None:
    told, blank = (ask(words, problem).problem for words in ("mbs=1,recompute=none", "mbs=1"))
    assert ends(told) == interval(told.setting.kind, "peak_memory", ONE)
    assert ends(blank) == interval(told.setting.kind, "peak_memory", ONE, ("recompute",))
    assert ends(blank)[1] > ends(told)[1]
    assert blank.headroom_bytes > told.headroom_bytes
    found = blank.setting.intervals_at(step_s=ONE, peak_bytes=ONE)
    assert found.known_by.endswith("; recompute not told")
    assert "not told: recompute" in found.memory_error


def test_a_headroom_that_is_given_stays(problem: Problem) -> None:
    given = replace(problem, request=problem.request.model_copy(update={"headroom": 0.05}))
    assert ask("mbs=1", given).problem.headroom_bytes == 0.05 * given.setting.limit_bytes
