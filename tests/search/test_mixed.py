"""Plans over several kinds of chips: the search against brute force, and what its plans say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright import api
from meshwright.cost.mixed import price_mixed
from meshwright.search.mixed.blocks import Block, Case, Chosen, Solved, in_flight, value_s
from meshwright.search.mixed.curves import (
    Curve,
    Once,
    OneWay,
    curves,
    once_tables,
    role_of,
    stage_table,
)
from meshwright.search.mixed.families import search_mixed
from meshwright.search.mixed.grid import Grid, make_grid
from meshwright.search.mixed.inner import solve, solve_alike
from meshwright.search.mixed.problem import MixedProblem, Score, resolve_mixed
from meshwright.search.mixed.reprice import Outcome, layout_of
from meshwright.search.mixed.ways import ways_of
from meshwright.search.request import PlanRequest
from meshwright.search.space import Rejections
from meshwright.values.errors import ConfigError

SMALL: dict[str, Any] = {"layers": 5, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32000}
slow = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def asked(cluster: str, **fields: Any) -> PlanRequest:
    model = "layers=5,hidden=2048,heads=16,ffn=8192,vocab=32000"
    return PlanRequest.of(
        {"model": model, "seq_len": 2048, "gbs": 16, **fields, "cluster": cluster}
    )


def searched(
    request: PlanRequest, score: Score | None = None
) -> tuple[MixedProblem, Grid, Outcome]:
    problem = resolve_mixed(request)
    grid = make_grid(problem, Rejections())
    return problem, grid, search_mixed(problem, grid, score or Score(rates=None), most_solved=10**9)


# The inner problem


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as so many of 1 or more."""
    for cuts in combinations(range(1, total), parts - 1):
        ends = (0, *cuts, total)
        yield tuple(b - a for a, b in pairwise(ends))


def priced(blocks: tuple[Block, ...], case: Case, layers: tuple[int, ...]) -> float | None:
    """The closed form of one assignment; None where it does not fit."""
    place = [block for block in blocks for _ in range(block.stages)]
    stages = []
    for number, (block, own) in enumerate(zip(place, layers, strict=True)):
        table = stage_table(
            block.curve,
            layers=np.array([own]),
            prefix=np.array([0]),
            role=role_of(number, len(place)),
            in_flight=in_flight(number, case),
            vpp=case.vpp,
            limit_bytes=block.limit_bytes,
            only=block.only,
        )
        if np.isinf(table.backward_s[0]):
            return None
        stages.append(
            Chosen(
                layers=own,
                way=0,
                redone=0,
                forward_s=float(table.forward_s[0]),
                backward_s=float(table.backward_s[0]),
            )
        )
    return value_s(blocks, case, Solved(stages=tuple(stages), bound_s=0.0))


def alike(block: Block) -> list[Block]:
    """The block under each of its ways to recompute."""
    return [
        replace(block, only=OneWay(way=way)) for way in range(len(block.curve.backward_layer_s))
    ]


def a_curve(draw: st.DrawFn) -> Curve:
    """Any stage costs: two ways to recompute, the second slower and smaller."""
    number = st.floats(0.2, 2.0)
    forward, more = draw(number), draw(number)
    kept = draw(st.floats(1.0, 4.0))
    return Curve(
        ways=(),
        by_block=False,
        forward_base_s=np.array([0.0, draw(st.floats(0, 1)), draw(st.floats(0, 1)), 1.0]),
        forward_layer_s=np.full(2, forward),
        backward_base_s=np.tile([0.0, draw(st.floats(0, 1)), draw(st.floats(0, 1)), 1.0], (2, 1)),
        backward_layer_s=np.array([[2 * more, 2 * more], [2 * more + forward, 2 * more + forward]]),
        redo_layer_s=np.zeros(2),
        base_bytes=np.ones((2, 3, 4)),
        base_flight_bytes=np.zeros((2, 3, 4)),
        layer_bytes=np.full((2, 2), 2.0),
        layer_flight_bytes=np.array([[kept, kept], [0.3, 0.3]]),
        chunk_bytes=0.0,
        params=(np.ones(6), np.zeros(6)),
        message_s=draw(st.floats(0, 0.3)),
        cross_message_s=draw(st.floats(0, 0.5)),
        near_message_s=0.0,
    )


@st.composite
def inner_cases(draw: st.DrawFn) -> tuple[tuple[Block, ...], Case]:
    nothing = Once(reduce_s=np.zeros(20), gather_s=np.zeros(20), optimizer_s=np.zeros(20))
    blocks = []
    for _ in range(draw(st.integers(1, 3))):
        stages = draw(st.integers(1, 3))
        blocks.append(
            Block(
                curve=a_curve(draw),
                once=(nothing,) * 4,
                stages=stages,
                layers=stages + draw(st.integers(0, 3)),
                chips_per_stage=8,
                domain=8,
                limit_bytes=draw(st.floats(8.0, 80.0)),
            )
        )
    micro = draw(st.integers(1, 24))
    case = Case(
        num_microbatches=micro,
        pp=sum(block.stages for block in blocks),
        vpp=1,
        blocking=draw(st.booleans()),
        dp_overlap=0.0,
        overhead_s=0.0,
        prefix=0,
    )
    return tuple(blocks), case


@settings(max_examples=60, deadline=None)
@given(inner=inner_cases(), rounds=st.integers(1, 4))
def test_interleaved_stages_are_assigned_exactly(
    inner: tuple[tuple[Block, ...], Case], rounds: int
) -> None:
    """They wait for the backwards of all stages, which memory makes longer."""
    blocks = tuple(
        replace(
            block,
            curve=replace(
                block.curve, message_s=0.0, cross_message_s=0.0
            ),  # long messages are bounded from below only
            layers=block.layers + block.stages,
            limit_bytes=block.limit_bytes / 2,
        )
        for block in inner[0]
    )
    case = replace(inner[1], vpp=2, num_microbatches=rounds * sum(block.stages for block in blocks))
    splits = [
        [s for s in compositions(block.layers, block.stages) if min(s) >= 2] for block in blocks
    ]
    values = [
        v
        for parts in product(*splits)
        if (v := priced(blocks, case, tuple(n for part in parts for n in part))) is not None
    ]
    solved = solve(blocks, case)
    if not values:
        assert solved is None
        return
    assert solved is not None and solved.bound_s == pytest.approx(min(values), rel=1e-9)
    assert value_s(blocks, case, solved) == pytest.approx(min(values), rel=1e-9)


@settings(max_examples=120, deadline=None)
@given(inner=inner_cases())
def test_inner_problem_is_solved_exactly(inner: tuple[tuple[Block, ...], Case]) -> None:
    blocks, case = inner
    every = product(*[compositions(block.layers, block.stages) for block in blocks])
    values = [
        v
        for parts in every
        if (v := priced(blocks, case, tuple(n for part in parts for n in part))) is not None
    ]
    solved = solve(blocks, case)
    if not values:
        assert solved is None
        return
    assert solved is not None
    assert solved.bound_s <= min(values) * (1 + 1e-12)
    if (
        case.blocking
    ):  # messages that overlap can stretch the steady state beyond the chains that the bound knows
        assert solved.bound_s == pytest.approx(min(values), rel=1e-12)
        assert value_s(blocks, case, solved) == pytest.approx(min(values), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(inner=inner_cases(), even=st.booleans())
def test_stages_that_must_be_alike_are_assigned_exactly(
    inner: tuple[tuple[Block, ...], Case], even: bool
) -> None:
    blocks, case = inner[0], replace(inner[1], blocking=True, even=even)
    if even:
        blocks = tuple(
            replace(block, layers=block.stages * (1 + block.layers % 3)) for block in blocks
        )
    splits = [
        (
            [(block.layers // block.stages,) * block.stages]
            if even
            else list(compositions(block.layers, block.stages))
        )
        for block in blocks
    ]
    values = [
        value
        for ways in product(*[alike(block) for block in blocks])
        for parts in product(*splits)
        if (value := priced(ways, case, tuple(n for part in parts for n in part))) is not None
    ]
    solved = solve_alike(blocks, case)
    if not values:
        assert solved is None
        return
    assert solved is not None and solved.bound_s == pytest.approx(min(values), rel=1e-12)
    assert value_s(blocks, case, solved) == pytest.approx(min(values), rel=1e-12)
    numbers = iter(solved.stages)
    for block in blocks:
        own = [next(numbers) for _ in range(block.stages)]
        assert len({stage.way for stage in own}) == 1
        assert not even or {stage.layers for stage in own} == {block.layers // block.stages}


# The whole search


def brute_force(problem: MixedProblem, grid: Grid) -> float:
    """The least that any plan of the space takes by the closed form, seconds per sequence."""
    return min(brute_forced(problem, grid).values(), default=float("inf"))


def brute_forced(problem: MixedProblem, grid: Grid) -> dict[tuple[object, ...], float]:
    """The least that a plan of each choice takes by the closed form, seconds per sequence, over
    every order and split of the layers; a choice is its cuts, the stages of each, and chunks."""
    site, best = problem.site, dict[tuple[object, ...], float]()
    layers, pools = site.model.total_layers, range(len(grid.options))
    known: Known = {}
    for common in range(len(grid.gbs)):
        own = [[-1, *np.flatnonzero(options.common == common)] for options in grid.options]
        for chosen in product(*own):
            present = [pool for pool in pools if chosen[pool] >= 0]
            for order in permutations(present):
                for split in product(
                    *[range(1, int(grid.options[p].stages[chosen[p]]) + 1) for p in order]
                ):
                    chips = sum(
                        n * int(grid.options[p].chips[chosen[p]])
                        for n, p in zip(split, order, strict=True)
                    )
                    if not order or sum(split) > layers or chips > problem.num_gpus:
                        continue
                    parts = [(p, int(chosen[p]), n) for p, n in zip(order, split, strict=True)]
                    for vpp in (1, 2):
                        least = of_stages(problem, grid, common, parts, known, chunks=(vpp,))
                        choice = (*sorted(parts), vpp)
                        if least < best.get(choice, float("inf")):
                            best[choice] = least
    return best


Known = dict[tuple[int, int, bool], tuple[Curve, tuple[Once, ...]]]
"""What one problem's options of a pool take, by (pool, option, whether there are several
stages)."""


def of_stages(
    problem: MixedProblem,
    grid: Grid,
    common: int,
    parts: list[tuple[int, int, int]],
    known: Known,
    *,
    chunks: tuple[int, ...] = (1, 2),
) -> float:
    """The best split of all layers over stages of (pool, option, count); `known` is filled, and is
    this problem's alone."""
    site = problem.site
    layers, pp = site.model.total_layers, sum(count for _, _, count in parts)
    best = float("inf")
    for split in compositions(layers, pp):
        blocks, at = [], 0
        for pool, option, count in parts:
            key = (pool, option, pp > 1)
            if key not in known:
                rows = grid.options[pool].layouts.take(np.array([option]))
                [curve] = curves(rows, grid.axes.recomputations, pool=pool, site=site, piped=pp > 1)
                known[key] = curve, once_tables([curve], rows, pool=pool, site=site, most=layers)[0]
            part = problem.parts[pool]
            blocks.append(
                Block(
                    curve=known[key][0],
                    once=known[key][1],
                    stages=count,
                    layers=sum(split[at : at + count]),
                    chips_per_stage=int(grid.options[pool].chips[option]),
                    domain=problem.cluster.pools[pool].node.domain_size,
                    limit_bytes=part.setting.limit_bytes - part.headroom_bytes,
                )
            )
            at += count
        micro = int(grid.num_microbatches[common])
        for vpp in chunks:
            if vpp == 2 and (pp == 1 or min(split) < 2 or micro % pp):
                continue
            case = Case(
                num_microbatches=micro,
                pp=pp,
                vpp=vpp,
                blocking=True,
                dp_overlap=site.stack.dp_overlap,
                overhead_s=site.stack.step_overhead_s,
                prefix=0,
            )
            value = priced(tuple(blocks), case, split)
            if value is not None:
                best = min(best, value / int(grid.gbs[common]))
    return best


@pytest.mark.parametrize(
    "fields", [{}, {"gbs": 2}, {"gbs": 4, "pins": {"mbs": [1], "vpp": [2], "cp": [1]}}]
)
def test_ways_are_bounded_from_below(fields: dict[str, Any]) -> None:
    """No plan of a way to cut takes less than the way's bound; few micro batches, where interleaved
    plans wait least."""
    problem = resolve_mixed(asked("a800:4,h800:2", **fields))
    grid = make_grid(problem, Rejections())
    ways = ways_of(problem, grid, Score(rates=None), most_chunks=2)
    checked, known = 0, Known()
    for chosen, common, once, chunked in zip(
        ways.options, ways.common, ways.once_bound, ways.chunked_bound, strict=True
    ):
        present = [pool for pool in range(len(chosen)) if chosen[pool] >= 0]
        for order in permutations(present):
            for split in product(
                *[range(1, int(grid.options[p].stages[chosen[p]]) + 1) for p in order]
            ):
                if sum(split) > problem.site.model.total_layers:
                    continue
                parts = [(p, int(chosen[p]), n) for p, n in zip(order, split, strict=True)]
                for vpp, bound in ((1, once), (2, chunked)):
                    least = of_stages(problem, grid, int(common), parts, known, chunks=(vpp,))
                    checked += np.isfinite(least)
                    assert least >= bound * (1 - 1e-9)
    assert checked > 20


@pytest.mark.parametrize(
    ("cluster", "fields"),
    [
        ("a800:4,h800:4", {}),
        ("a800:4,h800:2", {"num_gpus": 4, "gpus_per_node": 4}),
        ("h800:2,a100-40:4", {"gbs": 6}),
        ("a800:8,h800:2", {"max_memory_gib": 6.0, "headroom": 0}),
        ("t4:4,v100-16:2", {"precision": "fp16", "headroom": 0}),
        ("h100:6,a100-80:2", {"gbs": 24, "pins": {"mbs": [1, 2], "tp": [1]}}),
    ],
)
def test_search_finds_what_brute_force_finds(cluster: str, fields: dict[str, Any]) -> None:
    problem, grid, outcome = searched(
        asked(cluster, **{"pins": {"cp": [1], "vpp": [1, 2]}, **fields})
    )
    best = brute_force(problem, grid)
    assert outcome.best[0].score == pytest.approx(best, rel=1e-9)
    assert outcome.gap == 0.0
    assert outcome.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("cluster", "fields"),
    [
        ("a800:4,h800:4", {}),
        ("a800:4,h800:2", {"num_gpus": 4, "gpus_per_node": 4}),
        ("h800:2,a100-40:4", {"gbs": 6}),
        ("a800:8,h800:2", {"max_memory_gib": 6.0, "headroom": 0}),
        ("h100:6,a100-80:2", {"gbs": 24, "pins": {"mbs": [1, 2], "tp": [1]}}),
    ],
)
@pytest.mark.parametrize("top", [3, 12])
def test_the_n_best_are_those_of_brute_force(
    cluster: str, fields: dict[str, Any], top: int
) -> None:
    """In order, one of each choice, each at the split and order that are its best."""
    request = asked(cluster, **{"pins": {"cp": [1], "vpp": [1, 2]}, "top": top, **fields})
    problem, grid, outcome = searched(request)
    best = sorted(brute_forced(problem, grid).values())[:top]
    found = [plan.score for plan in outcome.best[: len(best)]]
    assert found == pytest.approx(best, rel=1e-9)
    assert outcome.bound <= best[0] * (1 + 1e-9)
    assert outcome.later_bound >= best[-1] * (1 - 1e-9), "nothing is left open below the last"


@pytest.mark.slow
@slow
@given(data=st.data())
def test_curves_give_what_the_cost_model_gives(data: st.DataObject) -> None:
    """The search ranks by what the plan then costs, also where memory makes stages recompute."""
    model = data.draw(
        st.sampled_from(["llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "qwen2-7b"])
    )
    limit = data.draw(st.sampled_from([None, 30.0, 45.0]))
    pins = {
        "cp": [1],
        "vpp": data.draw(st.sampled_from([[1], [2]])),
        "pp": [data.draw(st.integers(2, 4))],
    }
    request = PlanRequest.of(
        {
            "model": model,
            "seq_len": 4096,
            "gbs": 32,
            "cluster": "a800:8,h800:8",
            "pins": pins,
            "max_memory_gib": limit,
            "headroom": 0.1,
        }
    )
    problem, grid, outcome = searched(request, None)
    for found in outcome.best[:3]:
        whole = price_mixed(layout_of(found, problem, grid), problem.site)
        assert [s.forward_s for s in found.solved.stages] == pytest.approx(
            whole.forward_s.tolist(), rel=1e-9
        )
        assert [s.backward_s for s in found.solved.stages] == pytest.approx(
            whole.backward_s.tolist(), rel=1e-9
        )
        limits = [
            problem.parts[s.pool].setting.limit_bytes * 0.9
            for s in layout_of(found, problem, grid).stages
        ]
        assert (whole.used_bytes <= np.array(limits) * (1 + 1e-9)).all()
        if problem.site.model.moe is None:
            assert found.step_s == pytest.approx(whole.step_s, rel=1e-9)


def test_what_stages_must_share_they_share() -> None:
    fields: dict[str, Any] = {
        "model": "llama3-8b",
        "seq_len": 4096,
        "gbs": 32,
        "max_memory_gib": 45.0,
        "pins": {"cp": [1], "vpp": [1]},
    }
    free = api.plan(asked("a800:8,h800:8", **fields))
    held = api.plan(asked("a800:8,h800:8", **fields, same=["tp", "recompute"]))
    assert free.proof is not None and held.plans[0].step_s >= free.proof.bound_s * (1 - 1e-9)
    for plan in held.plans:
        assert plan.mixed is not None and len({stage.tp for stage in plan.mixed.stages}) == 1
        ways = {
            (stage.pool, stage.recompute, stage.recompute_layers, stage.recompute_modules)
            for stage in plan.mixed.stages
        }
        assert len(ways) == len(plan.mixed.pools)
    even = api.plan(asked("a800:8,h800:8", **fields, same=["layers"]))
    assert all(
        len({(stage.pool, stage.layers) for stage in plan.mixed.stages}) == len(plan.mixed.pools)
        for plan in even.plans
        if plan.mixed
    )


def test_more_chips_are_never_slower_and_idle_ones_are_said() -> None:
    few, many = (api.plan(asked(cluster)) for cluster in ("a800:4,h800:4", "a800:8,h800:4"))
    assert many.plans[0].step_s <= few.plans[0].step_s * (1 + 1e-9)
    result = api.plan(asked("t4:1,h100:8", gbs=8))
    used = {name: (count, idle) for name, count, idle in result.plans[0].chips}
    assert used["t4"] == (0, 1)  # one chip without bf16 units only delays the others


def test_a_plan_says_its_stages_and_its_proof() -> None:
    result = api.plan(asked("a800:4,h800:4"))
    answer = result.to_dict()
    first = answer["plans"][0]
    assert answer["search"]["bound_gap"] == 0.0 and answer["search"]["exhaustive"] is True
    assert sum(first["time"].values()) == pytest.approx(first["step_s"])
    assert len(first["stages"]) == first["layout"]["pp"] == len(first["peak_memory_gib"])
    assert sum(stage["layers"] for stage in first["stages"]) == 5
    counts = {chip["chip"]: chip["used"] + chip["idle"] for chip in first["chips"]}
    assert counts == {"a800": 4, "h800": 4}
    assert first["interval"]["step_s"][0] < first["step_s"] < first["interval"]["step_s"][1]
    for name in ("tp", "recompute"):
        values = {stage[name] for stage in first["stages"]}
        assert first["layout"][name] == (values.pop() if len(values) == 1 else None)
    shares = first["provenance"]["shares"]
    assert shares["tables"] + shares["kin"] + shares["formula"] + shares[
        "profile"
    ] == pytest.approx(1.0)


def test_memory_is_told_of_the_stage_that_fills_most_of_its_chip() -> None:
    """The stages of H200 hold more GiB and leave more free, and still take the larger share of
    their chip."""
    pins = {"tp": [4], "dp": [8], "cp": [2], "mbs": [1], "recompute": ["none"]}
    fields = {
        "model": "llama3-70b",
        "cluster": "a100-80:128,h200:64",
        "seq_len": 4096,
        "gbs": 512,
        "top": 1,
        "pins": pins,
    }
    best = api.plan(PlanRequest.of(fields)).plans[0]
    assert best.mixed is not None
    sees = {"a100-80": 79.15, "h200": 139.8}
    shares = [
        size / 2**30 / sees[stage.chip]
        for stage, size in zip(best.mixed.stages, best.peak_memory_bytes, strict=True)
    ]
    assert sum(best.memory_bytes.values()) == pytest.approx(
        best.peak_memory_bytes[shares.index(max(shares))]
    )


def test_one_kind_through_the_mixed_search_is_the_plan_of_that_kind() -> None:
    pins = {
        "tp": [4],
        "pp": [4],
        "dp": [2],
        "mbs": [1],
        "vpp": [1],
        "cp": [1],
        "recompute": ["none"],
    }
    fields = {"model": "llama3-8b", "seq_len": 4096, "gbs": 64, "pins": pins}
    alone = api.plan(PlanRequest.of({**fields, "cluster": "h100:32"}))
    capped = api.plan(PlanRequest.of({**fields, "cluster": "h100:64", "num_gpus": 32}))
    one, other = alone.plans[0], capped.plans[0]
    assert other.mixed is not None and other.mixed.uniform() is not None
    assert other.chips == (("h100", 32, 0),)
    split = {"layers_per_stage": ["+".join(str(stage.layers) for stage in other.mixed.stages)]}
    even = api.plan(PlanRequest.of({**fields, "cluster": "h100:32", "pins": pins | split}))
    assert even.plans[0].step_s == pytest.approx(other.step_s, rel=1e-9)
    assert other.step_s <= one.step_s * (1 + 1e-9)


def test_two_pools_of_like_chips_are_one_pool(tmp_path: Any) -> None:
    path = tmp_path / "twins.yaml"
    chips = "chips: {left: {like: h100}, right: {like: h100}}\n"
    path.write_text(chips + "pools:\n- {chip: left, count: 16}\n- {chip: right, count: 16}\n")
    fields = {
        "model": "llama3-8b",
        "seq_len": 4096,
        "gbs": 64,
        "pins": {"cp": [1], "vpp": [1], "pp": [4], "dp": [2]},
    }
    two = api.plan(PlanRequest.of({**fields, "cluster": str(path)}))
    one = api.plan(PlanRequest.of({**fields, "cluster": "h100:32", "num_gpus": 32}))
    assert two.plans[0].step_s == pytest.approx(one.plans[0].step_s, rel=2e-3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cluster": "a800:128,h80:128"}, "h80"),
        (
            {"cluster": "a800:128,h800:64", "num_gpus": 256},
            "num_gpus=256: the pools of a800:128,h800:64 have 192 chips together; take 192",
        ),
        (
            {"cluster": "a800:128,h800:128", "num_gpus": 100},
            "num_gpus=100: no multiple of the 8 chips of a node; nearest that are: 96 or 104",
        ),
        ({"cluster": "a800:1048576,h800:8"}, "1048584 chips: expected at most 1048576"),
        (
            {"cluster": "a800:8,h800:8", "gbs": 10, "pins": {"dp": [4]}},
            "gbs=10: no dp * mbs of dp=4 divides it; nearest that work: gbs=8 or 12",
        ),
        (
            {"cluster": "a800:8,h800:8", "usd_per_hour": 2.0},
            "usd_per_hour is the price of one kind of chip",
        ),
        ({"cluster": "a800:8,h800:8", "pins": {"layers_per_stage": ["2+3"]}}, "layers_per_stage"),
        ({"cluster": "a800:8,h800:8", "pins": {"schedule": ["gpipe"]}}, "schedule"),
        (
            {"cluster": "a800:16", "same": ["tp"]},
            "same=tp: of plans over several kinds of chips, or with num_gpus",
        ),
        (
            {"cluster": "a800:8,h800:8", "same": ["pp"]},
            "same.0='pp': input should be 'tp', 'recompute', 'layers' or 'order'",
        ),
        ({"cluster": "a800:8,h800:8", "calibration": "own.yaml"}, "one kind of chip"),
    ],
)
def test_bad_requests_get_one_clear_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        api.plan(asked(**fields))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_nothing_fits_is_an_answer() -> None:
    result = api.plan(
        PlanRequest.of(
            {"model": "llama3-405b", "seq_len": 8192, "gbs": 16, "cluster": "a800:4,h800:4"}
        )
    )
    assert not result.plans and "memory: more than the chips have" in result.rejected


def test_dollars_count_only_chips_in_use() -> None:
    time, money = (
        api.plan(asked("a800:8,h100:8", objective=objective)).plans[0]
        for objective in ("step_time", "tokens_per_dollar")
    )
    assert time.tokens_per_dollar is not None and money.tokens_per_dollar is not None
    assert money.tokens_per_dollar >= time.tokens_per_dollar and money.step_s >= time.step_s


def test_a_deadline_is_kept_at_least_cost() -> None:
    fastest, cheapest = (
        api.plan(asked("a100-80:8,h100:8", objective=o)).plans[0]
        for o in ("step_time", "tokens_per_dollar")
    )
    rates = [16 * 2048 / plan.step_s for plan in (cheapest, fastest)]
    wanted = (rates[0] + rates[1]) / 2
    kept = api.plan(
        asked("a100-80:8,h100:8", objective="tokens_per_dollar", min_tokens_per_s=wanted)
    ).plans
    assert kept and all(16 * 2048 / plan.step_s >= wanted for plan in kept)
    assert cheapest.tokens_per_dollar is not None and kept[0].tokens_per_dollar is not None
    assert fastest.tokens_per_dollar is not None
    assert (
        fastest.tokens_per_dollar * (1 - 1e-9)
        <= kept[0].tokens_per_dollar
        <= cheapest.tokens_per_dollar * (1 + 1e-9)
    )
    result = api.plan(asked("a100-80:8", min_tokens_per_s=1e9))
    assert not result.plans and any("below 1e+09 tokens/s" in reason for reason in result.rejected)


def test_joules_count_rated_power_of_chips_in_use() -> None:
    plan = api.plan(asked("a100-80:8,h100:8", objective="tokens_per_joule")).plans[0]
    watts = sum({"a100-80": 400, "h100": 700}[name] * used for name, used, _ in plan.chips)
    assert plan.provenance["tokens_per_joule"] == pytest.approx(16 * 2048 / plan.step_s / watts)
