"""A whole layer: kept activations against Korthikanti et al., recompute modules, launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from tests.cost.cases import CHIP, GPT, LLAMA, MLA, MOE, NODE, POOL, STACK, WORK, site

from meshwright.cost.layer import (
    CHECKPOINT_LAUNCHES,
    LAYER_TERMS,
    OPS_KEPT,
    OPS_REDONE,
    OPS_REDONE_SPLIT,
    LayerPrice,
    block_parts,
    price_layer,
    redo_of,
    sum_terms,
)
from meshwright.cost.linear import linear
from meshwright.values.layout import module_bits
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import HybridSpec, ModelSpec, MoeSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import AttentionKernel, Workload

SBH = 2048 * 1024
"""Elements of one activation of GPT in cases.py: 2048 tokens, one sequence, hidden 1024, so that 5
a s / h = 5 * 16 * 2048 / 1024 = 160."""
PAPER = replace(WORK, attention="fused-softmax", dropout=True)
"""What arXiv:2205.05198 counts: half precision, a fused softmax, dropout masks of one byte."""


def layer(
    model: ModelSpec = GPT, work: Workload = PAPER, *, stack: Stack = STACK, **layout: Any
) -> LayerPrice:
    return price_layer(site(model, work, stack=stack, **layout), model.segments[-1])


def one(array: Any) -> float:
    return float(np.asarray(array).item())


def redone(price: LayerPrice, names: set[str]) -> float:
    return sum(
        one(count * part.forward_s)
        for _, count, group in price.parts
        for part in group
        if part.name in names
    )


def test_korthikanti_keeps_34_sbh_and_the_scores() -> None:
    """Equation 1: attention 11 (input 2, Q and K 4, V 2, projection's input 2, mask 1),
    feed-forward 19 (2, 8, 8, mask 1), norms 4."""
    assert one(layer().kept_bytes) == SBH * (34 + 160)
    assert one(layer(mbs=2).kept_bytes) == 2 * SBH * (34 + 160)


def test_korthikanti_under_tensor_parallelism() -> None:
    """Equation 2: 10 sbh stay whole (inputs of both norms, of both blocks, and the masks); 24 sbh
    and the scores are split."""
    assert one(layer(tp=4).kept_bytes) == SBH * (10 + 24 / 4 + 160 / 4)


def test_korthikanti_under_sequence_parallelism() -> None:
    """Equation 4: everything is split."""
    assert one(layer(tp=4, sp=True).kept_bytes) == SBH * (34 + 160) / 4


def test_flash_attention_keeps_34_sbh_and_row_sums() -> None:
    """arXiv:2205.14135: no scores, 4 bytes a head and token in their place."""
    assert one(layer(work=replace(PAPER, attention="flash")).kept_bytes) == SBH * 34 + 4 * 16 * 2048


def test_without_dropout_two_masks_are_not_kept() -> None:
    """A mask of one byte in each block, and 3 of the 5 bytes per score."""
    assert one(layer(work=replace(PAPER, dropout=False)).kept_bytes) == SBH * (32 + 160 * 2 / 5)


def test_eager_attention_keeps_the_masked_scores() -> None:
    """2 bytes a score beyond the fused softmax: 2 a s / h = 64."""
    assert one(layer(work=replace(PAPER, attention="unfused")).kept_bytes) == SBH * (34 + 160 + 64)


def test_full_recompute_keeps_the_input() -> None:
    """Table 2: 2 sbh; with sequence parallelism the input lies split between the ranks."""
    assert one(layer().input_bytes) == one(layer(tp=4).input_bytes) == 2 * SBH
    assert one(layer(tp=4, sp=True).input_bytes) == 2 * SBH / 4
    assert one(layer(cp=2).input_bytes) == 2 * SBH / 2


def test_layernorm_recompute_frees_both_outputs() -> None:
    """The inputs of both blocks' first products, 2 sbh each."""
    price = layer()
    found = redo_of(price, module_bits(["layernorm"]))
    assert one(found.freed_bytes) == 4 * SBH
    assert one(found.redo_s) == pytest.approx(redone(price, {"norm"}))


def test_mlp_recompute_frees_the_inner_activations() -> None:
    price = layer()
    found = redo_of(price, module_bits(["mlp"]))
    assert one(found.freed_bytes) == 16 * SBH
    names = {"feed-forward first layer", "feed-forward activation", "feed-forward second layer"}
    assert one(found.redo_s) == pytest.approx(redone(price, names))
    activation = redo_of(price, module_bits(["mlp_act"]))
    assert one(activation.freed_bytes) == 8 * SBH
    assert one(activation.redo_s) == pytest.approx(redone(price, {"feed-forward activation"}))


def test_core_attention_is_redone_with_its_ring() -> None:
    price = layer(LLAMA, WORK, cp=2)
    found = redo_of(price, module_bits(["core_attn"]))
    assert one(found.redo_s) == pytest.approx(
        redone(price, {"attention core", "context parallel merge", "context parallel exchange"})
    )


def test_core_attention_frees_the_scores() -> None:
    """At the least the 5 a s / h; see arXiv:2205.05198, section 5."""
    assert one(redo_of(layer(), module_bits(["core_attn"])).freed_bytes) >= 160 * SBH


def test_expert_recompute_frees_rows_and_activations() -> None:
    """4096 rows: permuted 1024 wide, gate and value and product 3 * 512 wide; router logits; shared
    experts 3 * 256 wide."""
    price = layer(MOE, WORK)
    freed = 4096 * (1024 + 3 * 512) * 2 + 2048 * 8 * 4 + 2048 * 3 * 256 * 2
    assert one(redo_of(price, module_bits(["moe"])).freed_bytes) == freed
    assert one(redo_of(price, module_bits(["moe_act"])).freed_bytes) == 4096 * 512 * 2
    assert one(redo_of(price, module_bits(["shared_experts"])).freed_bytes) == 2048 * 3 * 256 * 2


def test_latent_recompute_redoes_the_up_projections() -> None:
    price = layer(MLA, WORK)
    found = redo_of(price, module_bits(["mla_up_proj"]))
    ups = [
        part for _, _, group in price.parts for part in group if part.name == "latent up projection"
    ]
    assert len(ups) == 2
    assert one(found.redo_s) == pytest.approx(
        redone(price, {"latent up projection", "rotary and concatenation"})
    )


def test_op_recompute_keeps_torchtitans_share() -> None:
    """Every second product and all memory-bound work is redone, of Llama 3 8B's keys, output and
    second feed-forward product; of 34 h bytes a token 14.5 stay."""
    assert pytest.approx(14.5 / 34, abs=0.005) == OPS_KEPT
    price = layer(LLAMA, WORK)
    found = redo_of(price, module_bits(["ops"]))
    assert one(found.freed_bytes) == pytest.approx((1 - OPS_KEPT) * one(price.kept_bytes))
    assert one(found.redo_s) == pytest.approx(
        OPS_REDONE * one(price.forward["matmul"]) + one(price.forward["pointwise"])
    )
    llama = find_model("llama3-8b")
    keys, out, second = (
        llama.num_kv_heads * llama.head_dim,
        llama.num_heads * llama.head_dim,
        llama.ffn,
    )
    products = 2 * keys + 2 * out + 3 * second
    assert pytest.approx((keys + out + second) / products, abs=0.005) == OPS_REDONE


def test_op_recompute_gathers_again_and_keeps_what_was_scattered() -> None:
    """Half of the forward exchange is gathers; torchtitan's list of what is kept has
    reduce_scatter_tensor alone."""
    split = layer(LLAMA, WORK, tp=4, sp=True)
    found = redo_of(split, module_bits(["ops"]))
    assert one(found.redo_s) == pytest.approx(
        OPS_REDONE_SPLIT * one(split.forward["matmul"])
        + one(split.forward["pointwise"])
        + one(split.forward["tp_comm"]) / 2
    )
    llama = find_model("llama3-8b")
    keys, out, wide = (
        llama.num_kv_heads * llama.head_dim,
        llama.num_heads * llama.head_dim,
        llama.ffn,
    )
    assert (
        pytest.approx((keys + wide) / (2 * keys + 2 * out + 3 * wide), abs=0.005)
        == OPS_REDONE_SPLIT
    )
    whole = layer(LLAMA, WORK, tp=4)
    shared = OPS_REDONE * one(whole.forward["matmul"]) + one(whole.forward["pointwise"])
    assert one(redo_of(whole, module_bits(["ops"])).redo_s) == pytest.approx(shared)


def test_recompute_of_a_layer_that_waits_for_the_host_costs_the_hosts_time() -> None:
    """5 us a launch and 8 a counted kernel, at most 1 ms of kernels' time: core attention launches
    its one kernel again, and its checkpoint takes as long as 12. Where the kernels' time is long
    enough the host is ahead, and only they count.
    """
    slow = replace(STACK, kernels_per_layer_scale=80.0)
    waiting, ahead = (
        layer(GPT, WORK, stack=slow),
        layer(GPT, WORK, stack=replace(STACK, launch_hidden=1.0)),
    )
    assert one(waiting.backward["launch"]) > 0
    host_s = (1 + CHECKPOINT_LAUNCHES) * CHIP.launch_s * 80
    assert one(redo_of(waiting, module_bits(["core_attn"])).redo_s) == pytest.approx(host_s)
    assert one(redo_of(ahead, module_bits(["core_attn"])).redo_s) == pytest.approx(
        redone(ahead, {"attention core"})
    )
    assert one(redo_of(waiting, 0).redo_s) == 0


def test_modules_add_up() -> None:
    """Norms and feed-forward share no part."""
    price = layer()
    both, norms, dense = (
        redo_of(price, module_bits(names))
        for names in (("layernorm", "mlp"), ("layernorm",), ("mlp",))
    )
    assert one(both.redo_s) == pytest.approx(one(norms.redo_s) + one(dense.redo_s))
    assert one(both.freed_bytes) == one(norms.freed_bytes) + one(dense.freed_bytes)
    assert one(redo_of(price, 0).redo_s) == one(redo_of(price, 0).freed_bytes) == 0


def test_terms_sum_to_the_passes() -> None:
    price = layer(MOE, WORK, tp=2, sp=True, cp=2, ep=2, dp=2)
    assert set(price.forward) == set(price.backward) == set(LAYER_TERMS)
    assert one(price.forward_s) == pytest.approx(
        sum(one(seconds) for seconds in price.forward.values())
    )
    assert one(price.forward_s) == one(sum_terms(price.forward))
    assert one(price.backward_s) == pytest.approx(
        sum(one(seconds) for seconds in price.backward.values())
    )
    parts = [(count, part) for _, count, group in price.parts for part in group]
    assert one(price.forward_s) - one(price.forward["launch"]) == pytest.approx(
        sum(one(c * np.asarray(p.forward_s)) for c, p in parts)
    )
    assert 0 < one(price.weight_s) < one(price.backward_s)


def test_sum_of_terms() -> None:
    assert sum_terms({"one": np.array([1.0, 2.0]), "two": np.array([10.0, 20.0])}).tolist() == [
        11,
        22,
    ]


def test_blocks_are_priced_by_their_kind() -> None:
    place = site(MOE, WORK)
    blocks = [block for block, _ in MOE.segments[0].blocks]
    assert [block.kind for block in blocks] == ["attention", "moe"]
    names = [{part.name for part in block_parts(place, block)} for block in blocks]
    assert "attention core" in names[0] and "router" in names[1]
    assert {part.name for _, _, group in layer(MOE, WORK).parts for part in group} == names[
        0
    ] | names[1]


def test_a_slow_host_sets_the_pace() -> None:
    """1 s per launch: kernels take their number of seconds; captured in graphs they take none."""
    slow = replace(POOL, node=replace(NODE, chip=replace(CHIP, launch_s=1.0)))
    eager = price_layer(site(GPT, pool=slow), GPT.segments[0])
    assert one(eager.forward_s) == pytest.approx(one(eager.forward_kernels))
    assert one(eager.forward["launch"]) > 0
    captured = price_layer(
        site(GPT, pool=slow, stack=replace(STACK, launch_hidden=1.0)), GPT.segments[0]
    )
    assert one(captured.forward["launch"]) == one(captured.backward["launch"]) == 0
    scaled = price_layer(
        site(GPT, pool=slow, stack=replace(STACK, kernels_per_layer_scale=3.0)), GPT.segments[0]
    )
    assert one(scaled.forward_s) == pytest.approx(3 * one(eager.forward_s))


def test_a_fast_host_adds_nothing() -> None:
    fast = replace(POOL, node=replace(NODE, chip=replace(CHIP, launch_s=0.0)))
    assert one(price_layer(site(GPT, pool=fast), GPT.segments[0]).forward["launch"]) == 0


def test_counts_of_tokens_hold_the_host_back() -> None:
    """The chip takes twice as long for attention as the host, the host longer for experts than the
    chip: a host that waits for the counts of tokens has no lead from attention left to spend. With
    places that are set beforehand it has."""
    unhindered = layer(MOE, WORK)
    (attention_s, attention_kernels), (experts_s, experts_kernels) = (
        (
            sum(one(np.asarray(part.forward_s)) for part in group),
            sum(float(np.asarray(part.kernels_forward).ravel()[0]) for part in group),
        )
        for _, _, group in unhindered.parts
    )
    launch_s = attention_s / attention_kernels / 2
    behind = experts_kernels * launch_s - experts_s
    assert behind > attention_s / 2 > 0
    slow = replace(POOL, node=replace(NODE, chip=replace(CHIP, launch_s=launch_s)))
    waits = price_layer(site(MOE, pool=slow), MOE.segments[0])
    assert one(waits.forward["launch"]) == pytest.approx(behind)
    assert MOE.moe is not None
    padded = replace(MOE, moe=replace(MOE.moe, capacity_factor=1.0))
    ahead = price_layer(site(padded, pool=slow), padded.segments[0])
    assert one(ahead.forward["launch"]) == pytest.approx(behind - attention_s / 2)
    assert one(ahead.backward["launch"]) == pytest.approx(one(waits.backward["launch"]))


def test_compared_collectives_hold_the_host() -> None:
    """1 s per collective and member: 4 and 6 collectives a layer with tp = 4; none without tensor
    parallelism. The forward pass launches besides, the backward pass meanwhile."""
    checked = replace(STACK, collective_check_s=1.0, kernels_per_layer_scale=10.0)
    held = layer(LLAMA, WORK, stack=checked, tp=4, sp=True)
    launched = one(held.forward_kernels) * POOL.node.chip.launch_s * 10.0
    assert one(held.forward_s) == pytest.approx(4 * 4 + launched)
    assert one(held.backward_s) == pytest.approx(6 * 4)
    assert one(layer(LLAMA, WORK, stack=checked).forward_s) < 1


def test_one_layer_in_two_has_experts() -> None:
    """The mean layer is half of each."""
    half = replace(MOE, moe=MoeSpec(num_experts=8, top_k=2, expert_ffn=512, layer_frequency=2))
    every = replace(half, moe=MoeSpec(num_experts=8, top_k=2, expert_ffn=512))
    mean = (one(layer(every, WORK).kept_bytes) + one(layer(LLAMA, WORK).kept_bytes)) / 2
    assert one(layer(half, WORK).kept_bytes) == mean


def test_the_widest_part_bounds_the_workspace() -> None:
    """Feed-forward's 8 sbh twice (a value and its gradient), and the block's gathered input and its
    gradient, 2 sbh each."""
    assert one(layer(work=WORK).widest_bytes) == 2 * 8 * SBH + 2 * 2 * SBH


@pytest.mark.parametrize("attention", ["fused-softmax", "unfused", "flash"])
def test_recomputed_core_leaves_34_sbh(attention: AttentionKernel) -> None:
    """arXiv:2205.05198, section 5: without the scores a GPT layer with dropout keeps 34 sbh."""
    layer = price_layer(
        site(GPT, replace(WORK, attention=attention, dropout=True)), GPT.segments[0]
    )
    left = layer.kept_bytes - redo_of(layer, module_bits(["core_attn"])).freed_bytes
    assert one(left) / SBH == pytest.approx(34.0)


def test_no_more_exchange_is_hidden_than_is_computed() -> None:
    """8 ranks, 2^20 tokens: overlap 0.5 leaves half of a short exchange; of one that is longer than
    the rest it hides half of the rest."""
    half = replace(STACK, ep_overlap=0.5, launch_hidden=1.0)
    for mbs, slow in ((512, 1.0), (512, 1e-3)):
        pool = replace(
            POOL, node=replace(NODE, domain_link=replace(NODE.domain_link, efficiency=0.8 * slow))
        )
        whole, hidden = (
            price_layer(site(MOE, stack=stack, pool=pool, ep=8, dp=8, mbs=mbs), MOE.segments[-1])
            for stack in (replace(half, ep_overlap=0.0), half)
        )
        exchange, left = one(whole.forward["ep_comm"]), one(hidden.forward["ep_comm"])
        rest = one(whole.forward_s) - exchange
        assert left == pytest.approx(exchange / 2 if slow == 1.0 else exchange - rest / 2)


def test_hybrid_models_hide_no_exchange() -> None:
    """Megatron-Core overlaps exchanges in models of attention layers only."""
    hybrid = replace(MOE, hybrid=HybridSpec(attention_layers=2, mamba_layers=0, ffn_layers=2))

    def exchange(model: ModelSpec, overlap: float) -> float:
        stack = replace(STACK, ep_overlap=overlap)
        return one(
            price_layer(site(model, stack=stack, ep=8, dp=8, mbs=512), model.segments[-1]).forward[
                "ep_comm"
            ]
        )

    assert exchange(MOE, 0.5) == pytest.approx(exchange(MOE, 0.0) / 2)
    assert exchange(hybrid, 0.5) == exchange(hybrid, 0.0) > 0


def test_a_plain_pipeline_hides_no_exchange() -> None:
    """Megatron-Core runs one micro batch's exchange beside another's compute where there are
    chunks, or no pipeline at all."""
    stack = replace(STACK, ep_overlap=0.5)

    def exchange(family: Literal["megatron", "fsdp"] = "megatron", **axes: Any) -> float:
        at = site(MOE, stack=replace(stack, family=family), ep=8, dp=8, mbs=512, **axes)
        return one(price_layer(at, MOE.segments[-1]).forward["ep_comm"])

    hidden = exchange()
    assert exchange(pp=2) == pytest.approx(2 * hidden)
    for free in ({"vpp": 2}, {"schedule": "zero-bubble"}, {"family": "fsdp"}):
        assert exchange(pp=2, **free) == pytest.approx(hidden)


def test_a_loop_over_experts_costs_no_python() -> None:
    """mxfp8, 8 experts: 1 + 1 launches from Python, and for each expert a product, a cast and two
    scale passes; backward 4, and 2 products, a cast and four scale passes."""
    at = site(
        MOE, replace(WORK, precision="mxfp8"), stack=replace(STACK, kernels_per_layer_scale=4.0)
    )
    part = linear(
        at,
        "experts",
        into=np.array([1024.0]),
        out=np.array([512.0]),
        tokens=np.array([512.0]),
        groups=8.0,
    )
    assert one(part.kernels_forward) == 2 + 8 * 4 / 4
    assert one(part.kernels_backward) == 4 + 8 * 7 / 4
