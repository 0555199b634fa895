"""A bound holds for every layout and every deal of layers, which small spaces allow to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from meshwright import plan
from meshwright.search.axes import axes_of
from meshwright.search.balance import can_balance, least_pipeline_s
from meshwright.search.exhaustive import search_space
from meshwright.search.plan import search_problem
from meshwright.search.problem import Problem, resolve
from meshwright.search.proof import bound_keys, prove
from meshwright.search.quote import price_in
from meshwright.search.refine import reprice, tidy
from meshwright.search.request import PlanRequest
from meshwright.search.space import Rejections, chunks, make_space
from meshwright.values.layout import Layout, Layouts, Schedule


@cache
def problem(**given: object) -> Problem:
    fields = {"model": "gpt3-1.3b", "cluster": "a100-80:8", "seq_len": 1024, "gbs": 16}
    return resolve(PlanRequest.of({**fields, "fastest": True, **given}))


def deals(layers: int, chunks_: int) -> Iterator[tuple[int, ...]]:
    """Every deal of layers that leaves no chunk empty."""
    if chunks_ == 1:
        yield (layers,)
        return
    for first in range(1, layers - chunks_ + 2):
        for rest in deals(layers - first, chunks_ - 1):
            yield (first, *rest)


def eight_layers(asked: Problem) -> Problem:
    short = replace(asked.setting.model, num_layers=8)
    return replace(asked, setting=replace(asked.setting, model=short))


@pytest.mark.parametrize(
    ("pp", "vpp", "schedule"),
    [(2, 1, "1f1b"), (4, 1, "1f1b"), (4, 1, "zero-bubble"), (2, 2, "1f1b")],
)
def test_no_deal_of_layers_undercuts_the_bound(pp: int, vpp: int, schedule: Schedule) -> None:
    asked = eight_layers(problem())
    layout = Layout(pp=pp, vpp=vpp, dp=8 // pp, gbs=16, mbs=1, sharding="zero1", schedule=schedule)
    rows = Layouts.of([layout])
    assert can_balance(rows, asked.setting).all()
    every = [replace(layout, layers_per_stage=deal) for deal in deals(8, pp * vpp)]
    simulated = reprice(asked, every)
    once = [
        sum(one.time_s[name] for name in ("dp_comm", "optimizer", "overhead")) for one in simulated
    ]
    pipelines = [one.step_s - each for one, each in zip(simulated, once, strict=True)]
    [bound] = least_pipeline_s(rows, asked.setting)
    assert bound <= min(pipelines) * (1 + 1e-6)
    assert bound > 0.8 * min(pipelines)
    priced = price_in(asked.setting, rows)
    assert bound_keys(asked, priced, rows)[0] * 16 <= min(one.step_s for one in simulated)


def test_every_layout_of_a_small_space_is_at_least_its_bound() -> None:
    asked = problem(model="tiny-llama", cluster="a100-80:4", seq_len=512)
    found = search_problem(asked)
    assert found.bound is not None
    every = [
        tidy(part.row(i))
        for part in chunks(make_space(asked, axes_of(asked), Rejections()), Rejections())
        for i in range(len(part))
    ]
    fastest = min(one.step_s for one in reprice(asked, every))
    assert found.bound.bound_s <= fastest * (1 + 1e-9)
    best = min(one.step_s for one in found.plans)
    assert best * (1 - found.bound.gap_frac) == pytest.approx(found.bound.bound_s)
    assert fastest >= best * (1 - found.bound.gap_frac) * (1 - 1e-9)


def test_what_is_faster_than_the_plan_is_found() -> None:
    asked = problem()
    harvest = search_space(asked, make_space(asked, axes_of(asked), Rejections()), Rejections())
    assert harvest.bounded is not None and harvest.fitting is not None
    best = search_problem(asked).plans[0]
    slow = max(
        reprice(asked, [harvest.fitting.layouts.row(i) for i in range(40)]),
        key=lambda one: one.step_s,
    )
    assert slow.step_s > best.step_s
    bounded = harvest.bounded
    bound, better = prove(asked, bounded.layouts, bounded.key, slow, beyond=float("inf"))
    assert better[0].step_s <= best.step_s * (1 + 1e-9)
    assert bound.bound_s <= best.step_s
    assert bound.simulated >= len({one.layout for one in better if one.layout.pp == 1})


def test_layouts_that_were_not_kept_are_bounded_by_the_last_that_was() -> None:
    asked = problem(model="tiny-llama", cluster="a100-80:4", seq_len=512)
    [fastest] = reprice(asked, [search_problem(asked).plans[0].layout])
    none = Layouts.of([fastest.layout]).take(np.array([], dtype=np.int64))
    key = fastest.step_s / fastest.layout.gbs
    bound, better = prove(asked, none, np.zeros(0), fastest, beyond=0.9 * key)
    assert (better, bound.simulated) == ([], 0)
    assert bound.gap_frac == pytest.approx(0.1)
    assert "more than 10.00% faster" in bound.words()


def test_the_answer_says_what_was_searched_and_how_near_it_is() -> None:
    found = plan(model="llama3-8b", cluster="h100:8", seq_len=4096, gbs=32)
    search = found.to_dict()["search"]
    assert found.bound is not None
    assert search["bound_gap"] == found.bound.gap_frac
    assert search["exhaustive"] is (found.bound.gap_frac == 0.0)
    assert search["exhaustive_over"]["tp"] == [1, 2, 4, 8]
    assert search["exhaustive_over"]["sharding"]


def test_ranked_by_memory_nothing_is_claimed() -> None:
    found = plan(model="llama3-8b", cluster="h100:8", seq_len=4096, gbs=32, objective="memory")
    search = found.to_dict()["search"]
    assert (search["exhaustive"], search["bound_gap"]) == (False, None)
