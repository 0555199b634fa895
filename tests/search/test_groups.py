"""Exchanges of a layout, by hand and against the time that they take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.cost.cases import LLAMA, MOE, POOL, STACK, WORK

from meshwright.cost.once import data_exchange_s, exchanged_bytes
from meshwright.search.groups import Exchange, exchanges_of
from meshwright.search.quote import Setting, quotes
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import ModelSpec

HALF = 2.0


def setting(model: ModelSpec = LLAMA) -> Setting:
    return Setting(model=model, pool=POOL, work=WORK, stack=STACK, limit_bytes=80 * 2.0**30)


def found(layout: Layout, model: ModelSpec = LLAMA) -> dict[str, Exchange]:
    [quote] = quotes([layout], setting(model))
    return {one.term: one for one in exchanges_of(layout, setting(model), quote.time_s)}


def test_tensor_parallel_bytes_by_hand() -> None:
    """With sequence parallelism each block gathers and scatters every activation of a micro batch:
    two blocks, twice."""
    one = found(Layout(tp=2, sp=True, mbs=2, gbs=8))["tp_comm"]
    tokens = 2 * WORK.seq_len
    assert one.sent_bytes == 2 * 2 * tokens * LLAMA.hidden * HALF
    assert one.axis == "tp"


def test_without_sequence_parallelism_one_sum_a_block() -> None:
    one = found(Layout(tp=2, mbs=1, gbs=8))["tp_comm"]
    assert one.sent_bytes == 2 * WORK.seq_len * LLAMA.hidden * HALF


def test_a_message_between_stages_by_hand() -> None:
    one = found(Layout(pp=2, mbs=1, gbs=8))["pp_comm"]
    assert one.sent_bytes == WORK.seq_len * LLAMA.hidden * HALF


def test_axes_of_one_rank_exchange_nothing() -> None:
    assert found(Layout(gbs=8)) == {}


def test_seconds_are_those_of_the_plan() -> None:
    layout = Layout(tp=2, sp=True, cp=2, dp=2, sharding="zero1", gbs=8)
    [quote] = quotes([layout], setting())
    exchanges = exchanges_of(layout, setting(), quote.time_s)
    assert {one.term: one.step_s for one in exchanges} == {
        term: quote.time_s[term] for term in ("tp_comm", "cp_comm", "dp_comm")
    }


def test_what_is_hidden_is_there_with_its_bytes() -> None:
    """A ring of two passes a rank's keys and values on once; here products hide all of it."""
    stack = replace(STACK, cp_overlap=1.0, context_exchange="ring")
    there = replace(setting(), stack=stack)
    layout = Layout(cp=2, gbs=8)
    [quote] = quotes([layout], there)
    [one] = [each for each in exchanges_of(layout, there, quote.time_s) if each.term == "cp_comm"]
    assert one.step_s == 0
    pairs = WORK.seq_len / 2 * LLAMA.num_kv_heads * 2 * LLAMA.head_dim
    assert one.sent_bytes == pairs * HALF


def test_experts_exchange_over_ep() -> None:
    one = found(Layout(dp=4, ep=4, gbs=8, sharding="zero1"), MOE)["ep_comm"]
    assert one.axis == "ep"
    assert one.sent_bytes > 0


def test_sharded_weights_are_gathered_layer_by_layer() -> None:
    one = found(Layout(dp=4, gbs=8, sharding="zero3"))["fsdp_comm"]
    [segment] = LLAMA.segments
    assert one.sent_bytes == pytest.approx(
        HALF * sum(count * _params(block) for block, count in segment.blocks)
    )


def _params(block: object) -> float:
    from meshwright.values.models.params import block_params

    part = block_params(LLAMA, block)  # type: ignore[arg-type]
    return part.sharded + part.replicated


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_bytes_over_a_slow_link_are_the_time(sharding: str) -> None:
    """Where the link is so slow that nothing else counts, an exchange takes its bytes over the
    rate: twice of a sum, once of a scatter and of a gather, (n - 1) / n of each."""
    slow = replace(
        POOL.node.domain_link,
        bytes_per_s=1.0,
        efficiency=1.0,
        latency_s=0.0,
        setup_s=0.0,
        half_message_bytes=0.0,
        pair_efficiency=None,
        full_rate_chips=None,
    )
    pool = replace(POOL, node=replace(POOL.node, domain_link=slow))
    rows = Layouts.of([Layout(dp=4, gbs=8, sharding=sharding)])  # type: ignore[arg-type]
    dense, expert = np.array([1e6]), np.array([0.0])
    reduced, gathered = exchanged_bytes(rows, dense, expert, stack=STACK, precision="bf16")
    times = data_exchange_s(rows, dense, expert, pool=pool, stack=STACK, precision="bf16")
    passes = 2 if sharding == "none" else 1
    assert float(times[0][0]) == pytest.approx(passes * 3 / 4 * float(reduced[0]), rel=1e-6)
    assert float(times[1][0]) == pytest.approx(3 / 4 * float(gathered[0]), rel=1e-6)
