"""Layers of interleaved plans that the simulation moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright import api
from meshwright.search.mixed.dealt import dealt
from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import make_grid
from meshwright.search.mixed.plan import search_mixed_plans
from meshwright.search.mixed.problem import MixedProblem, Score, resolve_mixed
from meshwright.search.mixed.reprice import Found, Repriced, layout_of, reprice_mixed
from meshwright.search.request import PlanRequest
from meshwright.search.space import Rejections

PINS = {"cp": [1], "vpp": [4], "dp": [8], "mbs": [4], "tp": [4]}
ASKED: dict[str, Any] = {
    "model": "llama2-13b",
    "seq_len": 4096,
    "cluster": "l40s:64,a800:96",
    "gbs": 128,
    "pins": PINS,
}
Case = tuple[MixedProblem, list[tuple[Found, Repriced]]]


@pytest.fixture(scope="module")
def case() -> Case:
    """Interleaved plans on two kinds of chips, of which a layer takes unlike times."""
    problem = resolve_mixed(PlanRequest.of(ASKED))
    grid = make_grid(problem, Rejections())
    found = search_mixed(problem, grid, Score(rates=None)).best
    return problem, list(
        zip(
            found,
            reprice_mixed([layout_of(each, problem, grid) for each in found], problem.site),
            strict=True,
        )
    )


def test_moved_layers_make_the_step_shorter(case: Case) -> None:
    """All layers stay, all stages fit; chunks that are dealt unlike gain 1 % over the same stages
    dealt evenly."""
    problem, plans = case
    some, unlike = 0, 0
    for found, before in plans:
        for layout in dealt(found, before, problem):
            [after, even] = reprice_mixed([layout, replace(layout, chunks=None)], problem.site)
            assert after.step_s < before.step_s
            assert (
                sum(layout.chunk_layers) == sum(before.layout.chunk_layers)
                and min(layout.chunk_layers) >= 1
            )
            assert np.array(layout.chunk_layers).reshape(4, -1).sum(axis=0).tolist() == [
                stage.layers for stage in layout.stages
            ]
            limits = [
                problem.parts[stage.pool].setting.limit_bytes
                - problem.parts[stage.pool].headroom_bytes
                for stage in layout.stages
            ]
            assert (after.price.used_bytes <= np.array(limits)).all()
            some += 1
            if layout.chunks is not None:
                assert after.step_s < 0.99 * min(even.step_s, before.step_s)
                unlike += 1
    assert some and unlike, "the request no longer shows both"


def test_plans_have_the_moved_layers_and_say_so(case: Case) -> None:
    problem, plans = case
    result = search_mixed_plans(problem.request)
    best = result.plans[0]
    assert best.mixed is not None and best.mixed.chunks is not None
    assert best.step_s < min(before.step_s for _, before in plans)
    assert best.to_dict()["layout"]["layers_per_stage"] == list(best.mixed.chunks)


def test_stages_that_must_be_alike_stay_so(case: Case) -> None:
    _, plans = case
    even = resolve_mixed(PlanRequest.of({**ASKED, "same": ["layers"]}))
    assert all(dealt(found, before, even) == [] for found, before in plans)


def test_plans_without_interleaving_are_left_alone() -> None:
    result = api.plan(PlanRequest.of({**ASKED, "pins": {**PINS, "vpp": [1]}, "top": 1}))
    assert all(plan.mixed is not None and plan.mixed.chunks is None for plan in result.plans)
