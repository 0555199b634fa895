"""Interleaved plans that the closed form takes for nearly as good as the best."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import make_grid
from meshwright.search.mixed.near import evenly_split, expected_s
from meshwright.search.mixed.plan import search_mixed_plans
from meshwright.search.mixed.problem import Score, resolve_mixed
from meshwright.search.mixed.reprice import layout_of, reprice_mixed
from meshwright.search.request import PlanRequest
from meshwright.search.rules.check import check_layout
from meshwright.search.space import Rejections

SMALL = {
    "model": "layers=24,hidden=2048,heads=16,ffn=8192,vocab=32000",
    "seq_len": 2048,
    "gbs": 32,
    "cluster": "h800:8,l40s:8",
}
PINNED = {
    "model": "llama3-70b",
    "seq_len": 4096,
    "gbs": 128,
    "cluster": "h800:64,h200:32",
    "top": 3,
}


def test_expected_steps_are_those_of_the_simulation() -> None:
    """And the layers of a plan that was split evenly are the model's."""
    problem = resolve_mixed(PlanRequest.of({**SMALL, "pins": {"vpp": [2, 3]}}))
    grid = make_grid(problem, Rejections())
    near = search_mixed(problem, grid, Score(rates=None)).near
    assert near
    priced = reprice_mixed([layout_of(found, problem, grid) for found in near], problem.site)
    assert expected_s(near).tolist() == pytest.approx([each.step_s for each in priced], rel=2e-3)
    for found in near:
        again = evenly_split(found.blocks, found.case)
        assert again is not None and again.stages == found.solved.stages
        assert sum(stage.layers for stage in found.solved.stages) == 24


def test_a_pinned_search_finds_no_better_plan() -> None:
    """The closed form of interleaved stages is sure to a few percent; the plans near its best are
    simulated with and without the pin."""
    free = search_mixed_plans(PlanRequest.of(PINNED)).plans[0]
    pinned = search_mixed_plans(PlanRequest.of({**PINNED, "pins": {"recompute": ["none"]}})).plans[
        0
    ]
    assert free.step_s <= 1.02 * pinned.step_s
    assert free.mixed is not None
    if {stage.recompute for stage in free.mixed.stages} == {"none"}:
        assert pinned.step_s <= 1.02 * free.step_s


@pytest.mark.parametrize("stack", ["torchtitan", "embedded", "megatron"])
def test_plans_keep_the_rules_of_the_software(stack: str) -> None:
    """Two micro batches fill no four stages where PyTorch runs them; every stage's layout is held
    to all rules."""
    request = PlanRequest.of(
        {
            **SMALL,
            "gbs": 2,
            "cluster": "a800:8,h800:8",
            "stack": stack,
            "pins": {"tp": [2]},
            "top": 5,
        }
    )
    problem = resolve_mixed(request)
    plans = search_mixed_plans(request).plans
    assert plans
    for plan in plans:
        assert plan.mixed is not None
        for number in range(plan.mixed.pp):
            row, case = plan.mixed.row(number), problem.parts[0].setting.case
            chips = row.tp * row.cp * row.pp * row.dp
            broken = check_layout(row, replace(case, num_chips=chips))
            assert not broken, broken


def test_a_plan_that_needs_the_headroom_is_at_risk() -> None:
    """Where no plan leaves a fifth of the chip free, 70.6e9 parameters on 16 of 79.2 GiB being more
    than that."""
    request = {
        **PINNED,
        "cluster": "a800:16,h800:16",
        "gbs": 2,
        "stack": "torchtitan",
        "pins": {"tp": [4]},
    }
    plans = search_mixed_plans(PlanRequest.of(request)).plans
    assert plans and {plan.fits for plan in plans} == {"at risk"}
    assert all(max(plan.peak_memory_bytes) > 0.8 * 79.1 * 2**30 for plan in plans)


def test_the_simulation_has_room_for_the_best_by_the_closed_form() -> None:
    """Of stages in 2 to 20 chunks those in 10 are the best by both; which are simulated does not
    hang on the order of the search."""
    request = {
        "model": "llama3-70b",
        "cluster": "h800:512,h200:16",
        "seq_len": 4096,
        "gbs": 1024,
        "top": 1,
    }
    pins = [{"tp": [4]}, {"tp": [4], "dp": [32], "vpp": [10]}]
    wide, narrow = (
        search_mixed_plans(PlanRequest.of({**request, "pins": each})).plans[0].step_s
        for each in pins
    )
    assert wide <= narrow * (1 + 1e-9)
