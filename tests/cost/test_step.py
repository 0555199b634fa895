"""A step on paper: what its terms are made of."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.cases import GPT, LLAMA, MEMORY_BYTES_PER_S, MOE, POOL, STACK, WORK, named, site

from meshwright.cost.collectives import OVERLAP_SLOWDOWN
from meshwright.cost.ends import price_ends
from meshwright.cost.feedforward import mlp_parts
from meshwright.cost.layer import price_layer, redo_of
from meshwright.cost.once import exposed_exchange_s
from meshwright.cost.schedules import Pipeline
from meshwright.cost.simulate import simulate
from meshwright.cost.stages import distinct_shapes
from meshwright.cost.step import TIME_TERMS, Priced, price
from meshwright.values.layout import Layout, Layouts, module_bits
from meshwright.values.models.params import block_params, model_params
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Precision, Workload

PARAMS = model_params(LLAMA).total
WHOLE = replace(STACK, bucket_bytes=1e18, step_overhead_s=0.5)
"""One collective for all gradients."""


def of(
    model: ModelSpec = LLAMA, *, stack: Stack = WHOLE, work: Workload = WORK, **layout: Any
) -> Priced:
    return price(
        Layouts.of([Layout(**layout)]), model=model, pool=POOL, work=work, stack=stack, which="all"
    )


def term(name: str, model: ModelSpec = LLAMA, **given: Any) -> float:
    return float(of(model, **given).time[name][0])


def test_one_chip_runs_its_micro_batches_one_by_one() -> None:
    """8 micro batches through 4 layers and the ends; Adam moves 30 bytes a parameter and passes
    thrice over 4 bytes of gradient."""
    layer, ends = price_layer(site(GPT), GPT.segments[0]), price_ends(site(GPT))
    both_ends = (
        ends.embedding_forward_s
        + ends.embedding_backward_s
        + ends.head_forward_s
        + ends.head_backward_s
    )
    micro = 4 * (layer.forward_s + layer.backward_s) + both_ends
    params = 4 * (12 * 1024**2 + 4 * 1024) + (2 * 32000 + 2048) * 1024 + 2 * 1024
    step = of(GPT, gbs=8)
    assert step.time["head"] == pytest.approx(8 * both_ends)
    assert step.time["optimizer"] == pytest.approx(
        params * (30 + 3 * 4) / MEMORY_BYTES_PER_S, rel=1e-4
    )
    assert step.step_s == pytest.approx(8 * micro + step.time["optimizer"] + 0.5)
    for name in ("bubble", "pp_comm", "dp_comm", "fsdp_comm", "tp_comm", "cp_comm", "ep_comm"):
        assert step.time[name] == 0
    assert step.time["recompute"] == pytest.approx(0, abs=1e-12)


def test_terms_are_all_there_and_sum() -> None:
    step = of(MOE, pp=2, tp=2, sp=True, ep=2, dp=4, gbs=16, sharding="zero1", recompute="full")
    assert tuple(step.time) == TIME_TERMS
    assert step.step_s == pytest.approx(sum(float(seconds[0]) for seconds in step.time.values()))
    assert step.time["overhead"] == 0.5
    assert term("overhead", stack=replace(WHOLE, launch_hidden=0.75)) == 0.125


def test_full_recompute_runs_every_forward_again() -> None:
    layer = price_layer(site(LLAMA), LLAMA.segments[0])
    assert term("recompute", gbs=8, recompute="full") == pytest.approx(
        8 * 4 * float(layer.forward_s[0])
    )
    half = term("recompute", gbs=8, recompute="full", recompute_method="block", recompute_layers=2)
    assert half == pytest.approx(8 * 2 * float(layer.forward_s[0]))


def test_recompute_that_stops_early_leaves_out_the_last_product() -> None:
    stack = replace(WHOLE, recompute_stops_early=True)
    layer = price_layer(site(LLAMA), LLAMA.segments[0])
    last = named(mlp_parts(site(LLAMA), Block(kind="mlp")), "feed-forward second layer").forward_s
    redone = float((layer.forward_s - last)[0])
    assert term("recompute", gbs=8, stack=stack, recompute="full") == pytest.approx(8 * 4 * redone)
    assert term(
        "recompute", gbs=8, stack=stack, recompute="selective", recompute_modules=("mlp",)
    ) == pytest.approx(
        term("recompute", gbs=8, recompute="selective", recompute_modules=("mlp",))
        - 8 * 4 * float(last[0])
    )
    assert of(LLAMA, gbs=8, stack=stack).step_s == pytest.approx(of(LLAMA, gbs=8).step_s)


def test_selective_recompute_runs_its_modules_again() -> None:
    layer = price_layer(site(LLAMA), LLAMA.segments[0])
    redo = redo_of(layer, module_bits(["mlp", "layernorm"])).redo_s
    found = term("recompute", gbs=8, recompute="selective", recompute_modules=("mlp", "layernorm"))
    assert found == pytest.approx(8 * 4 * float(redo[0]))


def test_distributed_optimizer_scatters_and_gathers() -> None:
    """8 ranks in a node: 7/8 of 4-byte gradients and of 2-byte weights at 400e9 bytes/s, 1/8 at
    800e9, 24 us each."""
    by_hand = (7 / 8 + 1 / 16) * PARAMS * (4 + 2) / 400e9 + 2 * 24e-6
    assert term("dp_comm", dp=8, gbs=8, sharding="zero1") == pytest.approx(by_hand)


def test_zero1_may_reduce_whole_gradients_after_the_passes() -> None:
    """nanotron: an all-reduce as without sharding, a gather of 2-byte weights, and nothing beside
    either whatever the overlap."""
    after = replace(WHOLE, zero1_exchange="after-passes", dp_overlap=1.0)
    reduced = (2 * 7 / 8 + 1 / 16) * PARAMS * 4 / 400e9 + 10e-6 + 2 * 14e-6
    gathered = (7 / 8 + 1 / 16) * PARAMS * 2 / 400e9 + 24e-6
    found = term("dp_comm", stack=after, dp=8, gbs=8, sharding="zero1")
    assert found == pytest.approx(reduced + gathered)


def test_gradients_of_fp32_weights_are_fp32() -> None:
    """Software that keeps and sends half-precision gradients sends 4 bytes each where weights have
    4: twice as many, and none twice."""
    halves = replace(WHOLE, gradient_bytes=2.0, reduce_bytes=2.0, transient_gradient_bytes=2.0)
    wide = replace(halves, gradient_bytes=4.0, reduce_bytes=4.0, transient_gradient_bytes=0.0)
    for precision in ("fp32", "tf32"):
        assert halves.in_precision(precision) == wide
        assert replace(halves, accumulate_bytes=6.0).in_precision(precision) == replace(
            wide, accumulate_bytes=12.0
        )
    assert halves.in_precision("fp16") == halves
    full = replace(WORK, precision="fp32")
    assert term("dp_comm", work=full, stack=halves, dp=8, gbs=8) == term(
        "dp_comm", work=full, stack=wide, dp=8, gbs=8
    )


def test_plain_data_parallelism_all_reduces() -> None:
    assert term("dp_comm", dp=8, gbs=8) == pytest.approx(
        (2 * 7 / 8 + 1 / 16) * PARAMS * 4 / 400e9 + 10e-6 + 2 * 14e-6
    )


def test_data_parallel_ranks_on_other_nodes_use_their_nics() -> None:
    """tp = 8 fills a node; 4 ranks of a dp group: 3/4 of an eighth of the matrices and of the norms
    whole, 35 us of latency."""
    norms = (2 * 4 + 1) * 1024
    share = (PARAMS - norms) / 8 + norms
    by_hand = (3 / 4 / 40e9 + 1 / 4 / 800e9) * share * 6 + 2 * 35e-6
    kv = replace(LLAMA, num_kv_heads=16)
    more = (model_params(kv).total - PARAMS) / 8
    found = term("dp_comm", kv, tp=8, sp=True, dp=4, gbs=8, sharding="zero1")
    assert found == pytest.approx(by_hand + (3 / 4 / 40e9 + 1 / 4 / 800e9) * more * 6)


def test_buckets_pay_latency_each() -> None:
    stack = replace(WHOLE, bucket_bytes=10e6)
    buckets = -(-4 * PARAMS // 10**7) + -(-2 * PARAMS // 10**7)
    by_hand = (7 / 8 + 1 / 16) * PARAMS * (4 + 2) / 400e9 + buckets * 24e-6
    assert term("dp_comm", dp=8, gbs=8, sharding="zero1", stack=stack) == pytest.approx(by_hand)


def test_data_parallel_exchange_hides_behind_the_last_backward() -> None:
    silent = replace(WHOLE, dp_overlap=1.0)
    alone = term("dp_comm", dp=8, mbs=8, gbs=64, sharding="zero1")
    assert term("dp_comm", dp=8, mbs=8, gbs=64, sharding="zero1", stack=silent) == pytest.approx(
        OVERLAP_SLOWDOWN * alone
    )
    some = term("dp_comm", dp=8, gbs=8, sharding="zero1", stack=replace(WHOLE, dp_overlap=0.01))
    assert 0 < some < term("dp_comm", dp=8, gbs=8, sharding="zero1")


def test_chunks_exchange_behind_each_other() -> None:
    """pp = 4, 2 chunks of 1 s: of 3 s half stay for the last chunk, whose own second hides 1 s; 9 s
    outlast all five seconds by 4 s."""
    exchange, pp, slowed = np.array([3.0, 9.0, 3.0]), np.array([4, 4, 4]), OVERLAP_SLOWDOWN
    chunked = exposed_exchange_s(exchange, np.full(3, 2.0), chunks=np.array([2, 2, 1]), pp=pp)
    assert chunked == pytest.approx([0.5 + 2.5 * slowed, 4.0 + 5 * slowed, 1.0 + 2 * slowed])
    assert exposed_exchange_s(
        exchange, np.zeros(3), chunks=np.array([2, 2, 1]), pp=pp
    ) == pytest.approx(exchange)
    megatron, other = (
        replace(WHOLE, dp_overlap=0.02, family=family) for family in ("megatron", "fsdp")
    )
    assert term("dp_comm", pp=2, vpp=2, dp=4, gbs=16, stack=megatron) < term(
        "dp_comm", pp=2, vpp=2, dp=4, gbs=16, stack=other
    )


def test_experts_reduce_over_their_own_replicas() -> None:
    """dp = 8, ep = 4: dense gradients over 8 ranks; an expert's over 2, four ranks apart, in the
    same node."""
    experts = 4 * 8 * 3 * 1024 * 512
    dense = model_params(MOE).total - experts
    by_hand = (
        (7 / 8 + 1 / 16) * dense * 6 / 400e9
        + 2 * 24e-6
        + (1 / 2 + 1 / 4) * experts / 4 * 6 / 400e9
        + 2 * 12e-6
    )
    assert term("dp_comm", MOE, dp=8, ep=4, gbs=8, sharding="zero1") == pytest.approx(by_hand)


def test_optimizer_updates_its_share() -> None:
    """zero1: an eighth is updated, all gradients are passed over; zero3: an eighth of both."""
    assert term("optimizer", dp=8, gbs=8) == pytest.approx(PARAMS * (30 + 12) / 1e12)
    assert term("optimizer", dp=8, gbs=8, sharding="zero1") == pytest.approx(
        PARAMS * (30 / 8 + 12) / 1e12
    )
    assert term("optimizer", dp=8, gbs=8, sharding="zero3") == pytest.approx(
        PARAMS * (30 + 12) / 8 / 1e12
    )


def test_full_sharding_gathers_twice_and_scatters_once_a_layer() -> None:
    """2-byte weights in both passes, 4-byte gradients in the backward; for each of 4 micro batches
    and 4 layers."""
    layer = sum(
        count * block_params(LLAMA, block).total for block, count in LLAMA.segments[0].blocks
    )
    gather, scatter = ((7 / 8 + 1 / 16) * layer * size / 400e9 + 24e-6 for size in (2, 4))
    assert term("fsdp_comm", dp=8, gbs=32, sharding="zero3") == pytest.approx(
        4 * 4 * (2 * gather + scatter)
    )
    assert term("fsdp_comm", dp=8, gbs=32, sharding="zero2") == pytest.approx(4 * 4 * scatter)
    assert term("fsdp_comm", dp=8, gbs=32, sharding="zero1") == 0
    deferred = replace(WHOLE, reduction_deferred=True)
    assert term("fsdp_comm", dp=8, gbs=32, sharding="zero3", stack=deferred) == pytest.approx(
        4 * (4 * 2 * gather + scatter)
    )
    piped = replace(WHOLE, family="fsdp")
    once = term("fsdp_comm", pp=2, dp=8, gbs=32, sharding="zero3", stack=piped)
    assert once == pytest.approx(
        4 / 2 * (gather + scatter)
    )  # for the four micro batches together, on two stages at a time
    hidden = replace(WHOLE, fsdp_overlap=1.0)
    alone = term("fsdp_comm", dp=8, mbs=8, gbs=64, sharding="zero3")
    assert term("fsdp_comm", dp=8, mbs=8, gbs=64, sharding="zero3", stack=hidden) == pytest.approx(
        OVERLAP_SLOWDOWN * alone
    )


def test_a_deferred_reduction_scatters_once_without_gathers_too() -> None:
    layer = sum(
        count * block_params(LLAMA, block).total for block, count in LLAMA.segments[0].blocks
    )
    scatter = (7 / 8 + 1 / 16) * layer * 4 / 400e9 + 24e-6
    deferred = replace(WHOLE, reduction_deferred=True)
    assert term("fsdp_comm", dp=8, gbs=32, sharding="zero2", stack=deferred) == pytest.approx(
        4 * scatter
    )


def test_what_replicas_reduce_may_be_wider_than_what_shards_do() -> None:
    halves, ddp = (
        replace(WHOLE, reduce_bytes=2.0),
        replace(WHOLE, reduce_bytes=2.0, replicated_reduce_bytes=4.0),
    )
    assert term("dp_comm", dp=8, gbs=8, stack=ddp) == term("dp_comm", dp=8, gbs=8)
    assert term("dp_comm", dp=8, gbs=8, sharding="zero1", stack=ddp) == term(
        "dp_comm", dp=8, gbs=8, sharding="zero1", stack=halves
    )


def test_shards_by_tensor_are_copied() -> None:
    """2-byte weights are read and written after each of two gathers, gradients read in 2 bytes and
    written in 4; alone nothing is."""
    layer = sum(
        count * block_params(LLAMA, block).total for block, count in LLAMA.segments[0].blocks
    )
    given: dict[str, Any] = {"dp": 8, "gbs": 32, "sharding": "zero3"}
    by_tensor = replace(WHOLE, shards_by_tensor=True)
    added = term("fsdp_comm", stack=by_tensor, **given) - term("fsdp_comm", **given)
    assert added == pytest.approx(4 * 4 * layer * (2 * 4 + 6) / MEMORY_BYTES_PER_S)
    assert term("fsdp_comm", gbs=8, sharding="zero3", stack=by_tensor) == term(
        "fsdp_comm", gbs=8, sharding="zero3"
    )
    assert term("fsdp_comm", dp=8, gbs=32, sharding="zero2", stack=by_tensor) == term(
        "fsdp_comm", dp=8, gbs=32, sharding="zero2"
    )


def test_frozen_weights_are_gathered_and_have_no_gradients() -> None:
    layer = sum(
        count * block_params(LLAMA, block).total for block, count in LLAMA.segments[0].blocks
    )
    gather = (7 / 8 + 1 / 16) * layer * 2 / 400e9 + 24e-6
    adapted = replace(WORK, lora_rank=16)
    assert term("fsdp_comm", dp=8, gbs=32, sharding="zero3", work=adapted) == pytest.approx(
        4 * 4 * 2 * gather
    )
    copies = term(
        "fsdp_comm",
        dp=8,
        gbs=32,
        sharding="zero3",
        work=adapted,
        stack=replace(WHOLE, shards_by_tensor=True),
    )
    assert copies == pytest.approx(4 * 4 * 2 * (gather + layer * 4 / MEMORY_BYTES_PER_S))


def test_weights_are_gathered_in_8_bits_where_a_tensor_has_one_scale() -> None:
    layer = sum(
        count * block_params(LLAMA, block).total for block, count in LLAMA.segments[0].blocks
    )
    narrow, wide = ((7 / 8 + 1 / 16) * layer * size / 400e9 + 24e-6 for size in (1, 2))
    scatter = (7 / 8 + 1 / 16) * layer * 4 / 400e9 + 24e-6
    stack = replace(WHOLE, narrow_linear="torchao-gathers")
    cases: dict[Precision, float] = {"fp8": narrow, "mxfp8": wide}
    for precision, gather in cases.items():
        found = term(
            "fsdp_comm",
            dp=8,
            gbs=32,
            sharding="zero3",
            stack=stack,
            work=replace(WORK, precision=precision),
        )
        assert found == pytest.approx(4 * 4 * (2 * gather + scatter))


def test_full_sharding_has_no_exchange_at_the_end() -> None:
    assert term("dp_comm", dp=8, gbs=8, sharding="zero3") == 0
    assert (
        term("dp_comm", dp=64, gbs=64, sharding="hybrid", shard_size=8) > 0
    )  # shards are summed over the replicas
    assert term("dp_comm", dp=8, gbs=8, sharding="hybrid", shard_size=8) == 0


def test_a_message_between_stages() -> None:
    """2048 * 1024 * 2 bytes; over the domain while both stages are in a node, else over the NIC; an
    eighth with tp = 8 and sp."""
    size = 2048 * 1024 * 2
    assert of(pp=4, gbs=8).stage_times.p2p_s == pytest.approx(1e-6 + size / 400e9)
    assert of(pp=4, dp=8, gbs=64).stage_times.p2p_s == pytest.approx(4e-6 + size / 40e9)
    assert of(pp=2, tp=8, sp=True, gbs=8).stage_times.p2p_s == pytest.approx(4e-6 + size / 8 / 40e9)
    assert of(gbs=8).stage_times.p2p_s == 0


def test_stages_of_one_node_pass_their_messages_inside() -> None:
    """tp = 2, pp = 8: four stages a node; a stage at the border has a neighbour inside and one
    across."""
    size = 2048 * 1024 * 2
    inside, across = 1e-6 + size / 400e9, 4e-6 + size / 40e9
    assert of(replace(LLAMA, num_layers=8), pp=8, tp=2, gbs=8).stage_times.p2p_s == pytest.approx(
        (inside + across) / 2
    )


def test_a_tied_table_is_reduced_between_the_ends() -> None:
    """Two stages in a node: half of 32000 * 1024 gradients of 4 bytes each way at 400e9 bytes/s,
    the own half copied, 10 + 2 * 2 us; with tp = 8 an eighth of the table and a NIC each; nothing
    without a pipeline."""
    tied, table = replace(LLAMA, tied=True), 32000 * 1024 * 4
    assert term("dp_comm", tied, pp=2, gbs=8) == pytest.approx((1 + 1 / 4) * table / 400e9 + 14e-6)
    far = term("dp_comm", tied, pp=2, tp=8, gbs=8)
    assert far == pytest.approx(table / 8 / 40e9 + table / 16 / 800e9 + 20e-6 + 2 * 5e-6)
    assert [term("dp_comm", tied, gbs=8), term("dp_comm", pp=2, gbs=8)] == [0, 0]


def test_a_tied_table_is_sent_as_it_is_kept() -> None:
    """With half-precision gradients whose other reductions are in fp32: as with all in half
    precision, and half of what fp32 ones take."""
    tied = replace(LLAMA, tied=True)
    kept = {
        name: replace(WHOLE, gradient_bytes=g, reduce_bytes=r)
        for name, g, r in (("mixed", 2, 4), ("half", 2, 2), ("full", 4, 4))
    }
    times = {name: term("dp_comm", tied, pp=2, gbs=8, stack=stack) for name, stack in kept.items()}
    assert times["mixed"] == times["half"]
    assert times["full"] - times["half"] == pytest.approx((1 + 1 / 4) * 32000 * 1024 * 2 / 400e9)


def test_a_message_sent_in_parts_is_gathered() -> None:
    """tp = 8 without sp: an eighth over the NIC, then 7/8 of all at 400e9 bytes/s, 1/8 at 800e9, 24
    us; half scattered is the mean."""
    size = 2048 * 1024 * 2
    parts = 4e-6 + size / 8 / 40e9 + (7 / 8 + 1 / 16) * size / 400e9 + 24e-6
    whole = 4e-6 + size / 40e9
    for share, expected in ((0.0, whole), (0.5, (whole + parts) / 2), (1.0, parts)):
        assert of(
            pp=2, tp=8, gbs=8, stack=replace(WHOLE, p2p_scattered=share)
        ).stage_times.p2p_s == pytest.approx(expected)
    assert of(
        pp=2, tp=8, sp=True, gbs=8, stack=replace(WHOLE, p2p_scattered=1.0)
    ).stage_times.p2p_s == pytest.approx(4e-6 + size / 8 / 40e9)
    assert (
        of(pp=2, gbs=8, stack=replace(WHOLE, p2p_scattered=1.0)).stage_times.p2p_s
        == of(pp=2, gbs=8).stage_times.p2p_s
    )


@pytest.mark.parametrize("vpp", [1, 2])
def test_the_simulation_takes_as_long(vpp: int) -> None:
    """16 layers in 4 stages, 8 micro batches; only the ends differ from the other stages, and
    closed forms take their chunks as equal."""
    step = of(
        replace(LLAMA, num_layers=16), pp=4, vpp=vpp, gbs=8, stack=replace(WHOLE, p2p="overlapped")
    )
    times = step.stage_times
    pipeline = Pipeline(
        schedule="1f1b" if vpp == 1 else "interleaved",
        pp=4,
        vpp=vpp,
        num_microbatches=8,
        forward_s=[float(t) / vpp for t in times.forward_s[0]] * vpp,
        backward_s=[float(t) / vpp for t in times.backward_s[0]] * vpp,
        wgrad_s=[0.0] * 4 * vpp,
        link_s=float(times.p2p_s[0]),
        p2p="overlapped",
    )
    once = sum(float(step.time[name][0]) for name in ("dp_comm", "optimizer", "overhead"))
    assert float(step.step_s[0]) - once == pytest.approx(simulate(pipeline).step_s, rel=0.01)


def test_the_slowest_stage_sets_the_pace() -> None:
    """Terms but for bubble and messages are M times the busiest stage: here the last, with the
    head."""
    step = of(pp=4, gbs=8)
    busiest = 8 * float((step.stage_times.forward_s + step.stage_times.backward_s).max())
    outside = ("bubble", "pp_comm", "dp_comm", "optimizer", "overhead")
    assert sum(
        float(v[0]) for name, v in step.time.items() if name not in outside
    ) == pytest.approx(busiest)


def test_a_micro_batch_on_each_stage() -> None:
    layer, ends = price_layer(site(LLAMA, pp=4), LLAMA.segments[0]), price_ends(site(LLAMA, pp=4))
    times = of(pp=4, gbs=8).stage_times
    forward, backward = float(layer.forward_s[0]), float(layer.backward_s[0])
    first, last = float(ends.embedding_forward_s[0]), float(ends.head_forward_s[0])
    assert times.forward_s[0] == pytest.approx([forward + first, forward, forward, forward + last])
    assert times.backward_s[0, 1:3] == pytest.approx([backward, backward])
    assert times.weight_s[0] == pytest.approx(
        [float(layer.weight_s[0])] * 3 + [float(layer.weight_s[0] + ends.head_weight_s[0])]
    )


def test_more_micro_batches_shrink_the_bubble() -> None:
    """Even 1F1B: (pp - 1) / M of the work."""
    few, many = (
        of(pp=4, gbs=gbs).time["bubble"] / (gbs * np.max(of(pp=4, gbs=gbs).stage_times.forward_s))
        for gbs in (8, 64)
    )
    assert few / many == pytest.approx(8, rel=0.05)


def test_compared_exchanges_between_replicas_hold_the_host() -> None:
    """1 s for each of 4 replicas: two exchanges with zero1. Unsharded, layers of b half-precision
    bytes fill b / (25 MiB + b / 8) buckets each, and both tables go alone."""
    checked = replace(WHOLE, collective_check_s=1.0)

    def more(**layout: Any) -> float:
        plain, held = (term("overhead", stack=stack, **layout) for stack in (WHOLE, checked))
        return held - plain

    assert more(dp=4, gbs=8, sharding="zero1") == pytest.approx(4 * 2)
    layers, tables = 4, 2 * 32000 * 1024
    each = 2.0 * (PARAMS - tables) / layers
    buckets = math.ceil(layers * min(3.0, each / (25 * 2**20 + each / 8))) + 2
    assert more(dp=4, gbs=8, sharding="none") == pytest.approx(4 * buckets)
    assert more(gbs=8, sharding="none") == 0


def test_shapes_are_priced_once() -> None:
    """Data parallel size, batch and the pipeline leave a dense layer's work alone."""
    rows = [
        Layout(gbs=8),
        Layout(dp=4, gbs=16),
        Layout(pp=2, gbs=8),
        Layout(pp=4, gbs=8),
        Layout(mbs=2, gbs=8),
        Layout(tp=2, gbs=8),
    ]
    columns = Layouts.of(rows)
    shapes, at = distinct_shapes(columns)
    assert len(shapes.tp) == 3
    for name in ("tp", "sp", "cp", "ep", "etp", "mbs"):
        assert getattr(shapes, name)[at].tolist() == getattr(columns, name).tolist()
