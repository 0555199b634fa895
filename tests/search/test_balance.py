"""Splits of layers that leave no stage much slower than the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from meshwright import api
from meshwright.cost.step import price
from meshwright.search.balance import balanced, can_balance
from meshwright.search.problem import Problem, resolve
from meshwright.search.refine import pipeline_of
from meshwright.search.request import PlanRequest
from meshwright.values.layout import Layout, Layouts

WIDE_HEAD = "layers=9,hidden=1024,heads=8,ffn=2816,vocab=256000"
"""Its head takes about as long as four of its layers."""


def problem(model: str = WIDE_HEAD, cluster: str = "h100:8", **fields: Any) -> Problem:
    return resolve(
        PlanRequest.of({"seq_len": 2048, "gbs": 32, **fields, "model": model, "cluster": cluster})
    )


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to give each part a layer or more, and the last any number."""
    for cuts in combinations(range(1, total + 1), parts - 1):
        yield tuple(b - a for a, b in pairwise((0, *cuts, total)))


def chunks_s(asked: Problem, layout: Layout) -> list[float]:
    pipeline = pipeline_of(asked, layout)
    return [f + b for f, b in zip(pipeline.forward_s, pipeline.backward_s, strict=True)]


def slowest_chunk_s(asked: Problem, layout: Layout) -> float:
    return max(chunks_s(asked, layout))


@pytest.mark.parametrize(
    ("pp", "vpp", "fields"),
    [
        (2, 1, {}),
        (4, 1, {}),
        (4, 1, {"recompute": "full", "recompute_method": "block", "recompute_layers": 1}),
        (2, 2, {}),
        (2, 3, {"recompute": "full"}),
    ],
)
def test_no_other_split_has_a_faster_slowest_chunk(
    pp: int, vpp: int, fields: dict[str, Any]
) -> None:
    asked = problem()
    layout = replace(Layout(pp=pp, vpp=vpp, dp=8 // pp, sharding="zero1", gbs=32), **fields)
    found = balanced(Layouts.of([layout]), asked.setting).row(0)
    assert found.layers_per_stage is not None
    assert (len(found.layers_per_stage), sum(found.layers_per_stage)) == (pp * vpp, 9)
    best = min(
        slowest_chunk_s(asked, replace(layout, layers_per_stage=split))
        for split in splits(9, pp * vpp)
    )
    small = (
        0.25 * min(chunks_s(asked, layout)) if vpp > 1 else 0.0
    )  # the quickest chunk has a layer or two
    assert best * (1 - 1e-9) <= slowest_chunk_s(asked, found) <= best * (1 + 1e-6) + small


def test_rounds_stay_of_one_size() -> None:
    """71 layers over 4 stages of 8 chunks, an embedding and a head below a layer: 2 each, 4 more in
    the first round, 3 in the second."""
    asked = problem("layers=71,hidden=8192,heads=64,ffn=28672,vocab=32000")
    layout = Layout(pp=4, vpp=8, dp=2, sharding="zero1", gbs=32)
    [split] = balanced(Layouts.of([layout]), asked.setting).chunk_layers or ()
    assert split == (3, 3, 3, 3, 2, 3, 3, 3, *(2,) * 24)


def test_dense_first_layers_are_worth_less_than_a_layer_of_experts() -> None:
    """DeepSeek-V3 on eight stages: three dense layers of 61 lie on the first, and the last has the
    head and a whole layer of prediction."""
    asked = problem("deepseek-v3", "b300:256", seq_len=4096, gbs=4096)
    layout = Layout(ep=8, pp=8, dp=32, sharding="zero1", gbs=4096)
    split = balanced(Layouts.of([layout]), asked.setting).row(0).layers_per_stage
    assert split is not None
    assert split[0] >= 8
    assert split[-1] < 7
    even, found = (
        price(Layouts.of([row]), **parts(asked), which="all")
        for row in (layout, replace(layout, layers_per_stage=split))
    )
    assert found.time["imbalance"][0] < 0.2 * even.time["imbalance"][0]


def parts(asked: Problem) -> dict[str, Any]:
    return {name: getattr(asked.setting, name) for name in ("model", "pool", "work", "stack")}


def test_the_search_finds_a_split_that_even_stages_do_not_show() -> None:
    """Of layouts that differ in their stages alone, no split of the two sizes around the mean is
    faster than the plan."""
    request = PlanRequest.of(
        {
            "model": "llama3-8b",
            "cluster": "h100:8",
            "seq_len": 8192,
            "gbs": 64,
            "pins": {"tp": [1], "cp": [2], "pp": [4], "vpp": [1], "mbs": [1]},
        }
    )
    best = api.plan(request).plans[0]
    asked = api.problem_of(request)
    rows = [
        replace(best.layout, layers_per_stage=split)
        for split in splits(32, 4)
        if min(split) >= 4 and max(split) <= 11
    ]
    priced = price(Layouts.of(rows), **parts(asked), which="all")
    fits = priced.peak_used_bytes <= asked.setting.limit_bytes - asked.headroom_bytes
    assert best.step_s <= priced.step_s[fits].min() * 1.005


def test_a_split_that_is_even_is_no_other() -> None:
    """Four equal layers on two stages behind a head that is small: 2 and 2, which needs no
    words."""
    small = problem("layers=4,hidden=4096,heads=32,ffn=16384,vocab=1024")
    assert (
        len(balanced(Layouts.of([Layout(pp=2, dp=4, sharding="zero1", gbs=32)]), small.setting))
        == 0
    )


def test_what_cannot_be_dealt_otherwise_is_left_alone() -> None:
    plain = Layout(pp=2, dp=4, sharding="zero1", gbs=32)
    rows = [
        (plain, True),
        (replace(plain, pp=1, dp=8), False),
        (replace(plain, layers_per_stage=(5, 4)), False),
        (replace(plain, schedule="zero-bubble", vpp=2), False),
        (replace(plain, schedule="zero-bubble"), True),
        (replace(plain, pp=1, vpp=1, dp=8), False),
    ]
    layouts = Layouts.of(row for row, _ in rows)
    assert can_balance(layouts, problem().setting).tolist() == [wanted for _, wanted in rows]
    for stack in ("nanotron", "megatron-legacy", "megatron-deepspeed"):
        assert not can_balance(layouts, problem(stack=stack).setting).any()
    assert not np.any(can_balance(layouts, problem("t5-3b", seq_len=512).setting))
