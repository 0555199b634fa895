"""Plans of which no other is both faster and cheaper."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshwright import api
from meshwright.search.mixed.front import undominated
from meshwright.search.request import PlanRequest
from meshwright.search.result import Plan
from meshwright.values.errors import ConfigError

MODEL = "layers=6,hidden=2048,heads=16,ffn=8192,vocab=32000"
PINS = {"cp": [1], "vpp": [1], "mbs": [1, 2], "tp": [1, 2]}


@pytest.fixture(scope="module")
def asked() -> PlanRequest:
    return PlanRequest.of(
        {"model": MODEL, "cluster": "a100-80:8,h100:16", "seq_len": 2048, "gbs": 64, "pins": PINS}
    )


@pytest.fixture(scope="module")
def front(asked: PlanRequest) -> tuple[Plan, ...]:
    return api.plan_front(asked, points=6)


def test_each_further_plan_is_faster_and_dearer(front: tuple[Plan, ...]) -> None:
    assert len(front) > 2 and [plan.rank for plan in front] == list(range(1, len(front) + 1))
    for cheap, fast in pairwise(front):
        assert fast.tokens_per_s > cheap.tokens_per_s
        assert fast.tokens_per_dollar is not None and cheap.tokens_per_dollar is not None
        assert fast.tokens_per_dollar < cheap.tokens_per_dollar


def test_the_ends_are_the_best_of_both_objectives(
    asked: PlanRequest, front: tuple[Plan, ...]
) -> None:
    fields = asked.to_dict() | {"top": 1}
    fastest = api.plan(PlanRequest.of(fields)).plans[0]
    cheapest = api.plan(PlanRequest.of(fields | {"objective": "tokens_per_dollar"})).plans[0]
    assert front[-1].tokens_per_s == pytest.approx(fastest.tokens_per_s, rel=1e-3)
    assert front[0].tokens_per_dollar == pytest.approx(cheapest.tokens_per_dollar, rel=1e-3)


def test_what_another_beats_on_both_is_left_out(front: tuple[Plan, ...]) -> None:
    first, second = front[0], front[1]
    assert [plan.step_s for plan in undominated([second, first, second])] == [
        first.step_s,
        second.step_s,
    ]
    assert len(undominated([first, first])) == 1


def test_a_chip_without_a_price_and_too_few_points_are_refused(asked: PlanRequest) -> None:
    with pytest.raises(ConfigError, match="no price of ascend-910a"):
        api.plan_front(asked.model_copy(update={"cluster": "ascend-910a:8"}))
    with pytest.raises(ConfigError, match="points=1"):
        api.plan_front(asked, points=1)
