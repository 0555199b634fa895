from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.report.answers import plan_answer, plan_of

from meshwright.report.parts.plan import cost_front_info, memory_front_info, unbeaten


def test_a_front_keeps_what_nothing_beats() -> None:
    assert unbeaten([(40, 10), (50, 12), (45, 9), (50, 11), (60, 12), (30, 1)]) == [5, 0, 1]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_every_other_is_beaten_or_equalled_by_one_of_the_front(
    pairs: list[tuple[int, int]],
) -> None:
    front = unbeaten(pairs)
    for low, high in pairs:
        assert any(pairs[k][0] <= low and pairs[k][1] >= high for k in front)
    for k in front:
        assert not any(
            (low < pairs[k][0] and high >= pairs[k][1])
            or (low <= pairs[k][0] and high > pairs[k][1])
            for low, high in pairs
        )


def test_plans_are_drawn_by_memory_and_throughput_with_the_best_named() -> None:
    lean = {**plan_of(2, longer_s=0.5), "peak_memory_gib": [20.0, 19.0]}
    slow = plan_of(3, longer_s=1.0)
    chart = memory_front_info(plan_answer(plan_of(1), lean, slow))
    beaten, front = chart.groups
    assert [point.label[:2] for point in front.points] == ["#2", "#1"]
    assert [point.label[:2] for point in beaten.points] == ["#3"]
    assert [point.named for point in front.points] == [False, True]
    assert chart.sentence.startswith("2 of 3 ranked plans")


def test_cost_is_drawn_where_plans_use_different_chips() -> None:
    few = {**plan_of(1), "chips": [{"chip": "h100", "used": 8, "idle": 8}]}
    many = {**plan_of(2), "chips": [{"chip": "h100", "used": 16, "idle": 0}]}
    chart = cost_front_info(plan_answer(few, many))
    assert chart is not None
    assert {(point.x, point.y) for group in chart.groups for point in group.points} == {
        (1.0, few["tokens_per_s_per_gpu"] * 8),
        (1.0, many["tokens_per_s_per_gpu"] * 16),
    }
    assert cost_front_info(plan_answer(few, few)) is None
