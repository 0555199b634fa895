"""Layouts over several kinds of chips: the same price as one kind where the kinds are the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.cost.layouts import Case, cases, layouts

from meshwright.cost.mixed import Site, price_each, price_mixed
from meshwright.cost.step import price
from meshwright.values.hardware.catalogue import default_node, find_link
from meshwright.values.hardware.cluster import Cluster, Pool
from meshwright.values.layout import Layout, Layouts
from meshwright.values.mixed_layout import MixedLayout, StageLayout
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import find_stack
from meshwright.values.workload import Workload

quick = settings(
    max_examples=40,
    suppress_health_check=[
        HealthCheck.filter_too_much,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
LLAMA = Site(
    model=find_model("llama3-8b"),
    cluster=Cluster(
        pools=(
            Pool(node=default_node("a800"), num_chips=64),
            Pool(node=default_node("h800"), num_chips=64),
        )
    ),
    work=Workload(seq_len=4096),
    stack=find_stack("megatron"),
)


def mixed(layout: Layout, case: Case, *, pools: int = 1) -> tuple[MixedLayout, Site]:
    """The same layout, its stages dealt to equal pools in runs."""
    split = layout.layers_per_stage or (case.model.total_layers // layout.pp,) * layout.pp
    chunks = np.array(split).reshape(-1, layout.pp).sum(axis=0)
    stages = tuple(
        StageLayout(
            pool=stage * pools // layout.pp,
            chip=case.pool.node.chip.name,
            layers=int(chunks[stage]),
            tp=layout.tp,
            sp=layout.sp,
            dp=layout.dp,
            mbs=layout.mbs,
            recompute=layout.recompute,
            recompute_method=layout.recompute_method,
            recompute_layers=layout.recompute_layers,
            recompute_modules=layout.recompute_modules,
        )
        for stage in range(layout.pp)
    )
    shared: dict[str, Any] = {
        name: getattr(layout, name)
        for name in ("gbs", "cp", "ep", "etp", "vpp", "sharding", "schedule")
    }
    site = Site(
        model=case.model,
        cluster=Cluster(pools=(case.pool,) * pools),
        work=case.work,
        stack=case.stack,
    )
    return MixedLayout(stages=stages, **shared), site


def stages_of(*kinds: tuple[int, int, int], tp: int = 2, **fields: Any) -> tuple[StageLayout, ...]:
    """Stages of (pool, layers, count)."""
    names = [pool.node.chip.name for pool in LLAMA.cluster.pools]
    return tuple(
        StageLayout(
            pool=pool, chip=names[pool], layers=layers, tp=tp, sp=tp > 1, dp=2, mbs=1, **fields
        )
        for pool, layers, count in kinds
        for _ in range(count)
    )


@quick
@given(data=st.data())
def test_one_kind_costs_what_it_costs_alone(data: st.DataObject) -> None:
    case = data.draw(cases())
    layout = data.draw(layouts(case, even=True))
    assume(layout.sharding != "hybrid" and len(case.model.segments) == 1)
    whole = price(
        Layouts.of([layout]),
        model=case.model,
        pool=case.pool,
        work=case.work,
        stack=case.stack,
        which="all",
    )
    found = price_mixed(*mixed(layout, case))
    for term, seconds in found.time.items():
        assert seconds == pytest.approx(
            float(whole.time[term][0]), rel=1e-9, abs=1e-9 * float(whole.step_s[0])
        ), term
    assert found.used_bytes == pytest.approx(whole.memory.used[0, : layout.pp], rel=1e-12)


@quick
@given(data=st.data())
def test_two_pools_of_one_chip_are_one_pool(data: st.DataObject) -> None:
    case = data.draw(cases())
    layout = data.draw(layouts(case, even=True))
    assume(layout.sharding != "hybrid" and layout.pp > 1)
    assume(
        layout.tp * layout.cp * layout.dp >= case.pool.node.domain_size
    )  # a pool's nodes are its own, and no node holds two stages
    one, two = price_mixed(*mixed(layout, case)), price_mixed(*mixed(layout, case, pools=2))
    assert two.time == pytest.approx(one.time, rel=1e-12)
    assert two.used_bytes == pytest.approx(one.used_bytes, rel=1e-12)


@quick
@given(data=st.data())
def test_work_of_a_stage_sums_to_its_times(data: st.DataObject) -> None:
    case = data.draw(cases())
    layout = data.draw(layouts(case))
    assume(
        layout.sharding != "hybrid"
        and layout.pp > 1
        and (layout.layers_per_stage is None or layout.vpp == 1)
    )
    found = price_mixed(*mixed(layout, case))
    busy = [
        seconds
        for term, seconds in found.time.items()
        if term not in ("bubble", "pp_comm", "dp_comm", "optimizer", "overhead")
    ]
    slowest = layout.num_microbatches * (found.forward_s + found.backward_s).max()
    assert sum(busy) == pytest.approx(slowest, rel=1e-9)


def test_each_stage_takes_its_own_chips_time() -> None:
    layout = MixedLayout(stages=stages_of((0, 4, 4), (1, 4, 4)), gbs=64, sharding="zero1")
    found = price_mixed(layout, LLAMA)
    slow, quick_ = (found.forward_s + found.backward_s)[[1, 5]]
    assert (
        1.5 < slow / quick_ < 3.2
    )  # 312 against 989 TFLOPS, with shares that are lower on the latter
    alone = replace(layout, stages=stages_of((0, 4, 8)))
    assert price_mixed(alone, LLAMA).forward_s[1] == pytest.approx(found.forward_s[1])


def test_the_link_between_pools_counts() -> None:
    layout = MixedLayout(stages=stages_of((0, 16, 1), (1, 16, 1), tp=8), gbs=64, sharding="zero1")
    slow = find_link("ib-100")
    far = replace(LLAMA, cluster=replace(LLAMA.cluster, pool_link=replace(slow, latency_s=0.01)))
    near, apart = price_mixed(layout, LLAMA), price_mixed(layout, far)
    # 4096 tokens of 4096 numbers in bf16 over 8 ranks, at 12.5 GB/s times the link's efficiency,
    # after 10 ms
    assert apart.links_s[0] == pytest.approx(
        0.01 + 4096 * 4096 * 2 / 8 / (slow.bytes_per_s * slow.efficiency)
    )
    assert apart.step_s > near.step_s + 2 * 0.009


def test_unlike_tensor_parallelism_sends_what_the_fewer_ranks_hold() -> None:
    stages = (*stages_of((0, 16, 1), tp=8), *stages_of((1, 16, 1), tp=2))
    layout = MixedLayout(stages=stages, gbs=64, sharding="zero1")
    link = LLAMA.cluster.pools[1].node.network_link
    assert price_mixed(layout, LLAMA).links_s[0] == pytest.approx(
        link.latency_s + 4096 * 4096 * 2 / 2 / (link.bytes_per_s * link.efficiency)
    )


def test_chips_are_counted_by_pool() -> None:
    layout = MixedLayout(
        stages=(*stages_of((0, 8, 2), tp=4), *stages_of((1, 8, 2), tp=2)), gbs=64, cp=2
    )
    assert (layout.chips_of(0), layout.chips_of(1), layout.num_chips) == (
        2 * 4 * 2 * 2,
        2 * 2 * 2 * 2,
        48,
    )
    assert layout.uniform() is None
    alike = MixedLayout(stages=stages_of((0, 10, 1), (0, 22, 1)), gbs=64)
    assert alike.uniform() == alike.row(0) and alike.row(0).layers_per_stage == (10, 22)


def test_chunks_of_a_stage_are_unrolled_in_model_order() -> None:
    layout = MixedLayout(stages=stages_of((0, 5, 1), (1, 27, 1)), gbs=64, vpp=2)
    assert [(s.pool, s.layers) for s in layout.unrolled().stages] == [
        (0, 3),
        (1, 14),
        (0, 2),
        (1, 13),
    ]
    whole, parts = price_mixed(layout, LLAMA), price_mixed(layout.unrolled(), LLAMA)
    assert parts.forward_s.reshape(2, 2).sum(axis=0) == pytest.approx(whole.forward_s)


def test_layouts_cost_together_what_they_cost_alone() -> None:
    short = MixedLayout(stages=stages_of((0, 10, 1), (1, 22, 1)), gbs=64)
    deep = MixedLayout(stages=stages_of((1, 10, 2), (0, 6, 2), tp=4), gbs=64, vpp=2)
    layouts = [short, deep, deep.unrolled()]
    for layout, together in zip(layouts, price_each(layouts, LLAMA), strict=True):
        alone = price_mixed(layout, LLAMA)
        assert together.time == pytest.approx(alone.time, rel=1e-12)
        assert together.links_s == pytest.approx(alone.links_s, rel=1e-12)
        for term, held in alone.memory.items():
            assert together.memory[term] == pytest.approx(held, rel=1e-12)
