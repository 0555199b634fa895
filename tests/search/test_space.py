from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.search.axes import axes_of
from meshwright.search.problem import Problem, resolve
from meshwright.search.request import PlanRequest
from meshwright.search.rules.check import check_layout, explicit_layers
from meshwright.search.space import Rejections, chunks, make_space
from meshwright.trainer.checks import require_trainable
from meshwright.trainer.job import TrainJob
from meshwright.values.layout import Layout, Layouts


def problem_of(**fields: Any) -> Problem:
    return resolve(
        PlanRequest.of(
            {"model": "llama3-8b", "cluster": "h100:16", "seq_len": 4096, "gbs": 32} | fields
        )
    )


def rows_of(problem: Problem) -> tuple[list[Layout], Rejections]:
    rejections = Rejections()
    space = make_space(problem, axes_of(problem), rejections)
    return [
        piece.row(i) for piece in chunks(space, rejections, rows=500) for i in range(len(piece))
    ], rejections


def breaks(layout: Layout, problem: Problem) -> list[str]:
    explicit = explicit_layers(layout, problem.setting.model)
    return [violation.message for violation in check_layout(explicit, problem.setting.case)]


REQUESTS: list[dict[str, Any]] = [
    {},
    {"cluster": "h100:24", "gbs": 48},
    {"cluster": "a100-80:20", "gbs": 40, "stack": "fsdp"},
    {"model": "mixtral-8x7b", "gbs": 64},
    {"model": "deepseek-v2-lite", "cluster": "h100:12", "gbs": 36},
    {"model": "llama3-8b", "gbs": None, "max_gbs": 100, "cluster": "h100:12"},
    {"pins": {"pp": [3], "layers_per_stage": ["11+11+10"]}, "cluster": "h100:12", "gbs": 24},
]


@pytest.mark.parametrize("fields", REQUESTS, ids=str)
def test_every_layout_of_the_space_is_valid_and_uses_all_chips(fields: dict[str, Any]) -> None:
    problem = problem_of(**fields)
    rows, _ = rows_of(problem)
    assert rows
    assert len(set(rows)) == len(rows)
    assert {layout.num_chips for layout in rows} == {problem.num_chips}
    picked = np.random.default_rng(0).choice(len(rows), size=min(300, len(rows)), replace=False)
    assert [
        (rows[i].words(), breaks(rows[i], problem)) for i in picked if breaks(rows[i], problem)
    ] == []


def test_the_space_equals_brute_force() -> None:
    """Every layout of 16 chips, held against the rules one by one."""
    problem = problem_of(pins={"recompute": ["none"]})
    rows, _ = rows_of(problem)
    sizes = [1, 2, 4, 8, 16]
    valid = set()
    for tp, cp, pp, vpp, mbs in product(sizes, sizes[:3], sizes, range(1, 33), sizes):
        if 16 % (tp * cp * pp):
            continue
        dp = 16 // (tp * cp * pp)
        layout = Layout(
            tp=tp,
            sp=tp > 1,
            cp=cp,
            etp=tp,
            pp=pp,
            vpp=vpp,
            dp=dp,
            mbs=mbs,
            gbs=32,
            sharding="zero1",
        )
        is_searched = vpp <= 8 or 32 % (pp * vpp) == 0
        if is_searched and pp * vpp <= 32 and not breaks(layout, problem):
            valid.add(layout)
    assert set(rows) == valid


def test_pins_hold() -> None:
    rows, _ = rows_of(
        problem_of(pins={"tp": [2, 4], "pp": [2], "recompute": ["full"], "mbs": [1], "vpp": [1]})
    )
    assert {layout.tp for layout in rows} == {2, 4}
    assert {(layout.pp, layout.recompute, layout.mbs, layout.vpp) for layout in rows} == {
        (2, "full", 1, 1)
    }


def test_pins_reach_beyond_the_bounds() -> None:
    rows, _ = rows_of(
        problem_of(
            pins={"sharding": ["none", "zero3"], "sp": [0], "schedule": ["gpipe"], "vpp": [1]},
            stack="fsdp",
        )
    )
    assert {layout.sharding for layout in rows} == {"none", "zero3"}
    assert {layout.sp for layout in rows} == {False}


def test_schedules_are_those_of_the_software() -> None:
    def schedules(stack: str, **pins: Any) -> set[tuple[str, bool]]:
        rows, _ = rows_of(problem_of(pins={"mbs": [1], "recompute": ["none"], **pins}, stack=stack))
        return {(layout.schedule, layout.pp > 1) for layout in rows}

    assert schedules("megatron") == {("1f1b", False), ("1f1b", True)}
    assert schedules("embedded") == {("1f1b", False), ("1f1b", True), ("zero-bubble", True)}
    assert schedules("megatron", schedule=["zero-bubble"]) == set()
    assert schedules("torchtitan", schedule=["zero-bubble", "gpipe"]) == {("gpipe", True)}


@pytest.mark.parametrize("stack", ["embedded", "embedded-compiled"])
@pytest.mark.parametrize(
    ("model", "chips", "seq_len", "gbs"),
    [("tiny-llama", 6, 256, 12), ("tiny-moe", 4, 256, 8), ("llama3-8b", 8, 4096, 24)],
)
def test_the_embedded_trainer_takes_what_is_searched_for_it(
    model: str, chips: int, seq_len: int, gbs: int, stack: str
) -> None:
    problem = problem_of(
        model=model,
        cluster=f"h100:{chips}",
        seq_len=seq_len,
        gbs=gbs,
        stack=stack,
        pins={"recompute": ["none", "full"]},
    )
    rows, _ = rows_of(problem)
    assert rows
    for layout in rows:
        job = TrainJob(
            model=problem.setting.model,
            layout=layout,
            seq_len=seq_len,
            compile=stack == "embedded-compiled",
        )
        require_trainable(job, num_processes=chips)


def test_chunk_size_changes_nothing() -> None:
    problem = problem_of(model="mixtral-8x7b")
    counted = []
    for rows in (100, 10_000):
        rejections = Rejections()
        pieces = list(
            chunks(make_space(problem, axes_of(problem), rejections), rejections, rows=rows)
        )
        assert max(len(piece) for piece in pieces) <= rows
        counted.append((set(_rows(Layouts.concat(pieces))), rejections.counts))
    assert counted[0] == counted[1]


def _rows(layouts: Layouts) -> list[Layout]:
    return [layouts.row(i) for i in range(len(layouts))]


def test_a_searched_batch_is_the_largest_that_divides() -> None:
    rows, _ = rows_of(problem_of(gbs=None, max_gbs=100, pins={"recompute": ["none"]}))
    for layout in rows:
        unit = layout.mbs * layout.dp * (layout.pp if layout.vpp > 1 else 1)
        assert 100 - unit < layout.gbs <= 100


@settings(max_examples=25)
@given(chips=st.integers(1, 200), gbs=st.integers(1, 300))
def test_any_number_of_chips(chips: int, gbs: int) -> None:
    """Axes multiply to the chips, and nothing is lost in silence: what is not in the space has a
    reason."""
    problem = problem_of(cluster=f"h100:{chips}", gbs=gbs, pins={"recompute": ["none"]})
    rows, rejections = rows_of(problem)
    assert all(layout.num_chips == chips and layout.gbs == gbs for layout in rows)
    assert rows or rejections.counts


def test_full_recompute_of_some_layers_is_tried_where_the_software_can() -> None:
    def blocks(**fields: Any) -> set[bool]:
        return {bool(way.block) for way in axes_of(problem_of(**fields)).recomputations}

    assert blocks(stack="megatron") == {False, True}
    assert (
        blocks(stack="torchtitan")
        == blocks(stack="deepspeed")
        == blocks(stack="nanotron")
        == {False}
    )
    assert True in blocks(stack="torchtitan", pins={"recompute_layers": [2]})
