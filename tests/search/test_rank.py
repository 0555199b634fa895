"""Why a plan stands before the next, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.search.examples import problem

import meshwright
from meshwright.search.axes import axes_of
from meshwright.search.exhaustive import search_space
from meshwright.search.rank import beats_words, group_of, grouped_rows
from meshwright.search.refine import tidy
from meshwright.search.result import Plan
from meshwright.search.space import Rejections, make_space
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


@pytest.mark.parametrize("pins", [{}, {"mbs": [1, 2]}])
def test_groups_of_columns_are_those_of_their_layouts(pins: dict[str, list[int | str]]) -> None:
    """Found by comparing columns, in the order of each group's first row."""
    asked = problem("mixtral-8x7b", "h100:32", gbs=64, pins=pins)
    space = make_space(asked, axes_of(asked), Rejections())
    found = search_space(asked, space, Rejections()).fitting
    assert found is not None
    wanted: dict[tuple[object, ...], list[int]] = {}
    for row in range(len(found)):
        key = group_of(tidy(found.layouts.row(row)), asked.request)
        wanted.setdefault(key, []).append(row)
    assert len(wanted) > 20
    groups = grouped_rows(found.layouts, asked.request)
    assert [list(rows) for rows in groups] == list(wanted.values())
