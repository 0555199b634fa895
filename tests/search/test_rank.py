"""Why a plan stands before the next, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.search.examples import problem

import meshwright
from meshwright.search.rank import beats_words
from meshwright.search.result import Plan
from meshwright.search.titles import TIME_READINGS

ASKED = problem("llama3-8b", "h100:16", gbs=64)
FIRST, SECOND = meshwright.plan(
    model="llama3-8b", cluster="h100:16", seq_len=8192, gbs=64, top=2, pins={"pp": [2]}
).plans


def words(mine: dict[str, float], other: dict[str, float]) -> str:
    """Of two plans of the same batch with these terms."""

    def with_times(plan: Plan, time_s: dict[str, float]) -> Plan:
        return replace(plan, time_s={**dict.fromkeys(TIME_READINGS, 0.0), **time_s})

    return beats_words(ASKED.request, with_times(FIRST, mine), with_times(SECOND, other))


@pytest.mark.parametrize(
    ("mine", "other", "text"),
    [
        ({"matmul": 9.0}, {"matmul": 9.0, "imbalance": 2.0}, "-2 s stage imbalance"),
        (
            {"matmul": 9.0, "bubble": 1.0},
            {"matmul": 9.0, "imbalance": 2.0},
            "-2 s stage imbalance, but +1 s pipeline bubble",
        ),
        (
            {"imbalance": 0.5},
            {"matmul": 1.0, "bubble": 0.5},
            "-1 s matrix products, -500 ms pipeline bubble, but +500 ms stage imbalance",
        ),
        ({"matmul": 9.0, "bubble": 0.1}, {"matmul": 10.0, "tp_comm": 0.1}, "-1 s matrix products"),
        ({"matmul": 9.0}, {"matmul": 9.0}, "equal"),
    ],
)
def test_the_largest_terms_are_named(
    mine: dict[str, float], other: dict[str, float], text: str
) -> None:
    assert words(mine, other) == text


def test_a_gain_that_is_spread_over_many_terms_names_the_largest() -> None:
    spread = dict.fromkeys(TIME_READINGS, 0.1)
    assert words({}, {**spread, "imbalance": 0.11}) == "-110 ms stage imbalance"


def test_another_batch_counts_per_sequence() -> None:
    second = replace(SECOND, layout=replace(SECOND.layout, gbs=128), time_s={"matmul": 4.0})
    assert (
        beats_words(ASKED.request, replace(FIRST, time_s={"matmul": 1.0}), second)
        == "-1 s matrix products"
    )
