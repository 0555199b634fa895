"""Dense and expert feed-forwards on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.cases import (
    CHIP,
    GPT,
    LLAMA,
    MEMORY_BYTES_PER_S,
    MOE,
    STACK,
    WORK,
    named,
    saved,
    site,
)

from meshwright.cost.feedforward import mlp_parts, moe_parts
from meshwright.cost.kernels import gemm_s
from meshwright.cost.operators import Part
from meshwright.cost.routing import busiest_share
from meshwright.values.models.spec import Block, ModelSpec, MoeSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Routing

DENSE, EXPERTS = Block(kind="mlp"), Block(kind="moe")
TOKENS = 2048
BOTH: tuple[Routing, ...] = ("balanced", "worst")
SPEC = MoeSpec(num_experts=8, top_k=2, expert_ffn=512, shared_ffn=256)


def experts(model: ModelSpec = MOE, *, stack: Stack = STACK, **layout: Any) -> list[Part]:
    return moe_parts(site(model, stack=stack, **layout), EXPERTS)


def product(m: float, n: float, k: float, groups: float = 1.0) -> float:
    return float(
        gemm_s(
            CHIP, m=np.array([m]), n=np.array([n]), k=np.array([k]), precision="bf16", groups=groups
        )[0]
    )


def test_a_plain_feed_forward_keeps_its_activation_and_its_input() -> None:
    """arXiv:2205.05198, section 4.1: the activation's input 8 sbh, the second layer's input 8
    sbh."""
    parts = mlp_parts(site(GPT), DENSE)
    assert saved(named(parts, "feed-forward activation")) == 8 * TOKENS * 1024
    assert saved(named(parts, "feed-forward second layer")) == 8 * TOKENS * 1024
    assert (
        saved(named(parts, "feed-forward first layer")) == 0
    )  # its input is the norm's output, counted there


def test_a_gated_feed_forward_keeps_gate_and_value() -> None:
    parts = mlp_parts(site(LLAMA), DENSE)
    assert saved(named(parts, "feed-forward activation")) == TOKENS * 2 * 3072 * 2
    assert saved(named(parts, "feed-forward second layer")) == TOKENS * 3072 * 2
    assert named(parts, "feed-forward first layer").forward_s == product(TOKENS, 2 * 3072, 1024)
    assert named(parts, "feed-forward second layer").forward_s == product(TOKENS, 1024, 3072)


def test_activation_moves_three_elements_forward_and_five_back() -> None:
    """Gated: two read and one written; backward three read and two written."""
    part = named(mlp_parts(site(LLAMA), DENSE), "feed-forward activation")
    assert part.forward_s == pytest.approx(TOKENS * 3072 * 3 * 2 / MEMORY_BYTES_PER_S + 2e-6)
    assert part.backward_s == pytest.approx(TOKENS * 3072 * 5 * 2 / MEMORY_BYTES_PER_S + 2e-6)


def test_eager_gates_keep_one_more() -> None:
    eager = mlp_parts(site(LLAMA, stack=replace(STACK, pointwise_fused=False)), DENSE)
    assert saved(named(eager, "feed-forward activation")) == TOKENS * 3 * 3072 * 2


def test_fp8_keeps_the_second_layers_input_in_a_byte() -> None:
    parts = mlp_parts(site(LLAMA, replace(WORK, precision="fp8")), DENSE)
    assert saved(named(parts, "feed-forward second layer")) == TOKENS * 3072
    assert saved(named(parts, "feed-forward activation")) == TOKENS * 2 * 3072 * 2


def test_feed_forward_splits_over_tensor_parallel_ranks() -> None:
    parts = mlp_parts(site(LLAMA, tp=4), DENSE)
    assert saved(named(parts, "feed-forward activation")) == TOKENS * 2 * 3072 * 2 / 4
    assert named(parts, "feed-forward first layer").forward_s == product(TOKENS, 2 * 3072 / 4, 1024)


def test_experts_see_the_tokens_routed_to_them() -> None:
    """2048 tokens to 2 of 8 experts each: 4096 rows, 512 an expert; keep gate and value 2 * 512
    wide."""
    parts = experts()
    assert named(parts, "experts first layer").forward_s == product(512, 1024, 1024, groups=8)
    assert named(parts, "experts second layer").forward_s == product(512, 1024, 512, groups=8)
    assert saved(named(parts, "experts activation")) == 4096 * 2 * 512 * 2
    assert saved(named(parts, "experts second layer")) == 4096 * 512 * 2


def test_expert_parallelism_keeps_the_rows_and_holds_fewer_experts() -> None:
    """Each of 4 ranks sends away 3/4 of its rows and gets as many from the others: still 4096, for
    2 experts."""
    parts = experts(ep=4, dp=4)
    assert named(parts, "experts first layer").forward_s == product(2048, 1024, 1024, groups=2)
    assert saved(named(parts, "experts activation")) == saved(
        named(experts(), "experts activation")
    )


def test_a_capacity_factor_pads_the_rows() -> None:
    padded = replace(MOE, moe=replace(SPEC, capacity_factor=1.5))
    assert saved(named(experts(padded), "experts activation")) == 1.5 * saved(
        named(experts(), "experts activation")
    )


def test_a_tensor_parallel_rank_routes_its_own_tokens() -> None:
    """tp = 4 with whole experts (etp = 1): 512 tokens, 1024 rows; with split experts (etp = 4):
    everybody's 4096 rows, a quarter wide."""
    whole, split = (experts(tp=4, sp=True, etp=etp) for etp in (1, 4))
    assert saved(named(whole, "experts activation")) == 1024 * 2 * 512 * 2
    assert saved(named(split, "experts activation")) == 4096 * 2 * 128 * 2
    assert named(whole, "experts first layer").forward_s == product(128, 1024, 1024, groups=8)
    assert named(split, "experts first layer").forward_s == product(512, 256, 1024, groups=8)


def test_expert_exchange_on_paper() -> None:
    """8 ranks in a node: 2^21 rows of 1024 in 2 bytes, 7/8 of them to others and 1/8 copied; to the
    experts and back."""
    exchange = named(experts(ep=8, dp=8, mbs=512), "expert exchange")
    assert exchange.forward_s == exchange.backward_s
    assert exchange.forward_s == pytest.approx(
        2 * 2**21 * 1024 * 2 * (7 / 8 / 400e9 + 1 / 8 / 800e9), rel=0.01
    )
    assert named(experts(), "expert exchange").forward_s == 0


def test_expert_exchange_over_nodes_is_bound_by_the_nic() -> None:
    """ep = 16 on two nodes: half of the rows leave the node."""
    wide = replace(MOE, moe=replace(SPEC, num_experts=16))
    exchange = named(experts(wide, ep=16, dp=16, mbs=512), "expert exchange")
    assert exchange.forward_s == pytest.approx(2 * 2**21 * 1024 * 2 * 8 / 16 / 28e9, rel=0.01)


def test_permutation_keeps_the_rows_and_the_router_its_logits() -> None:
    part = named(experts(), "permute and unpermute")
    assert saved(part) == 4096 * 1024 * 2 + 2048 * 8 * 4
    assert named(experts(), "router").forward_s == product(2048, 8, 1024)


def test_shared_experts_are_a_dense_feed_forward() -> None:
    parts = experts(tp=2, sp=True)
    assert named(parts, "shared experts first layer").forward_s == product(TOKENS, 2 * 128, 1024)
    assert saved(named(parts, "shared experts activation")) == TOKENS * 2 * 128 * 2
    plain = replace(MOE, moe=replace(SPEC, shared_ffn=0))
    assert not [part for part in experts(plain) if part.name.startswith("shared")]


def test_latent_experts_work_in_a_narrower_width() -> None:
    latent = replace(MOE, moe=replace(SPEC, latent_dim=256))
    parts = experts(latent)
    assert named(parts, "experts first layer").forward_s == product(512, 1024, 256, groups=8)
    assert named(parts, "expert down projection").forward_s == product(TOKENS, 256, 1024)
    assert saved(named(parts, "permute and unpermute")) == 4096 * 256 * 2 + 2048 * 8 * 4


def test_recompute_modules_name_their_parts() -> None:
    dense, routed = mlp_parts(site(GPT), DENSE), experts()
    redone = {
        module: {p.name for p in (*dense, *routed) if module in p.redone_by}
        for module in ("mlp", "mlp_act", "moe", "moe_act")
    }
    freed = {
        module: {p.name for p in (*dense, *routed) if module in p.freed_by}
        for module in ("mlp", "mlp_act", "moe", "moe_act")
    }
    layers = {f"{{}} {part}" for part in ("first layer", "activation", "second layer")}
    assert redone["mlp"] == {layer.format("feed-forward") for layer in layers} | {
        "tensor parallel exchange"
    }
    assert freed["mlp"] == {"feed-forward activation", "feed-forward second layer"}
    assert redone["mlp_act"] == {"feed-forward activation"}
    assert freed["mlp_act"] == {"feed-forward second layer"}  # its input is the activation's output
    assert redone["moe_act"] == {"experts activation"}
    assert freed["moe_act"] == {"experts second layer"}
    all_of_it = {layer.format(name) for layer in layers for name in ("experts", "shared experts")}
    assert redone["moe"] == all_of_it | {
        "router",
        "permute and unpermute",
        "expert exchange",
        "tensor parallel exchange",
    }
    assert freed["moe"] == {name for name in all_of_it if "first" not in name} | {
        "permute and unpermute"
    }


def test_nothing_reads_what_makes_the_output() -> None:
    """The second layer and the exchange behind it; with sequence parallelism the other half of the
    exchange brings the block's input."""
    early = replace(STACK, recompute_stops_early=True)
    for sp, share in ((True, 0.5), (False, 1.0)):
        parts = mlp_parts(site(LLAMA, stack=early, tp=4, sp=sp), DENSE)
        exchange, second = (
            named(parts, "tensor parallel exchange"),
            named(parts, "feed-forward second layer"),
        )
        assert exchange.unread_s == pytest.approx(share * exchange.forward_s)
        assert second.unread_s == pytest.approx(second.forward_s)
        assert sum(np.any(part.unread_s) for part in parts) == 2


def test_a_norm_behind_the_block_reads_its_output() -> None:
    early = replace(STACK, recompute_stops_early=True)
    parts = mlp_parts(site(replace(LLAMA, norms_per_layer=4), stack=early), DENSE)
    assert not any(np.any(part.unread_s) for part in parts)


def test_a_flexible_dispatcher_sorts_once() -> None:
    """4096 rows out and in, of 1024 in 2 bytes: four passes over both through NCCL, two by DeepEP's
    kernels; 36 kernels in either case."""
    through_nccl = named(experts(), "permute and unpermute")
    flexible = named(experts(stack=replace(STACK, dispatcher="flex")), "permute and unpermute")
    both = 2 * 4096 * 1024 * 2
    assert (
        through_nccl.forward_s
        == through_nccl.backward_s
        == pytest.approx(4 * both / MEMORY_BYTES_PER_S + 36 * 2e-6)
    )
    assert (
        flexible.forward_s
        == flexible.backward_s
        == pytest.approx(2 * both / MEMORY_BYTES_PER_S + 36 * 2e-6)
    )


def test_a_flexible_dispatcher_sends_a_token_once_per_rank() -> None:
    """2 choices among 8 ranks fall on 1.875 of them; 512 * 2048 tokens of 2 kB, there and back."""
    exchange = named(
        experts(ep=8, dp=8, mbs=512, stack=replace(STACK, dispatcher="flex")), "expert exchange"
    )
    assert exchange.forward_s == pytest.approx(2 * 2**20 * 2048 * 1.875 * 7 / 8 / 400e9, rel=0.01)


def test_biases_of_experts_pass_over_memory_in_fp32() -> None:
    """4096 rows of 1024: 28 bytes each forward, 40 backward, in two and six kernels for each of 8
    experts and two for all; nothing where a compiler fuses them, and nothing without biases."""
    biased = replace(MOE, moe=replace(SPEC, expert_bias=True))
    part = named(experts(biased), "expert biases")
    assert part.forward_s == pytest.approx(4096 * 1024 * 28 / MEMORY_BYTES_PER_S + 18 * 2e-6)
    assert part.backward_s == pytest.approx(4096 * 1024 * 40 / MEMORY_BYTES_PER_S + 50 * 2e-6)
    fused = experts(biased, stack=replace(STACK, expert_bias_fused=True))
    assert "expert biases" not in {p.name for p in (*fused, *experts())}


def test_a_clamped_gate_passes_over_both_halves_of_the_first_layer() -> None:
    """4096 rows, per inner element: forward two values clamped (2 + 2 bytes) and joined (2 + 2);
    backward four kernels of 2 + 1, two of 3 + 2, and two of 2 + 2. What was clamped is kept, unless
    the activation is redone; experts without a gate have no clamp.
    """
    clamped = replace(MOE, moe=replace(SPEC, clamps_gate=True))
    part = named(experts(clamped), "experts clamp")
    inner = 4096 * SPEC.expert_ffn
    assert part.forward_s == pytest.approx(inner * 16 / MEMORY_BYTES_PER_S + 3 * 2e-6)
    assert part.backward_s == pytest.approx(inner * (12 + 10 + 8) / MEMORY_BYTES_PER_S + 7 * 2e-6)
    assert part.saved_bytes == pytest.approx(inner * 2 * 2)
    assert part.freed_by == part.redone_by == {"moe", "moe_act"}
    fused = experts(clamped, stack=replace(STACK, expert_bias_fused=True))
    assert "experts clamp" not in {
        p.name for p in (*fused, *experts(), *experts(replace(clamped, gated=False)))
    }


@pytest.mark.parametrize(("fused", "launches"), [(False, 115), (True, 66)])
def test_routing_keeps_the_host_busy_for_longer_than_its_kernels(
    fused: bool, launches: float
) -> None:
    part = named(experts(stack=replace(STACK, routing_fused=fused)), "permute and unpermute")
    assert part.kernels_forward == part.kernels_backward == launches


def test_the_busiest_rank_gates_an_exchange() -> None:
    """64 experts on 16 ranks, 8 a token. Typical: 1 + 0.3 / sqrt(4) * sqrt(2 ln 16) = 1.353. Worst:
    each token takes the 4 experts of one rank, half of its 8 choices, where a 16th is the mean: 8
    times as many."""
    wide = replace(MOE, moe=replace(SPEC, num_experts=64, top_k=8))

    def share(routing: Routing, model: ModelSpec = wide, ep: int = 16) -> float:
        return float(busiest_share(site(model, replace(WORK, routing=routing), ep=ep, dp=16))[0])

    assert share("balanced") == 1.0
    assert share("in-turn") == 1.0
    assert share("typical") == pytest.approx(1.3532, abs=1e-4)
    assert share("worst") == 8.0
    assert share("typical", ep=1) == share("worst", ep=1) == 1.0
    assert (
        share(
            "worst", replace(wide, moe=replace(SPEC, num_experts=64, top_k=8, capacity_factor=1.0))
        )
        == 1.0
    )


def test_unbalanced_routing_costs_time_and_memory() -> None:
    plain, worst = (
        moe_parts(site(MOE, replace(WORK, routing=routing), ep=4, dp=4), EXPERTS)
        for routing in BOTH
    )
    assert (
        named(worst, "experts activation").saved_bytes
        == 4 * named(plain, "experts activation").saved_bytes
    )  # both choices on one rank
    assert named(worst, "expert exchange").forward_s > named(plain, "expert exchange").forward_s


def test_nothing_reads_what_makes_a_mixtures_output() -> None:
    """Weights meet the rows before the second product; of two exchanges the way back; a latent
    width is read behind it."""
    early = replace(STACK, recompute_stops_early=True)
    unread = {
        part.name: part.unread_s
        for part in experts(stack=early, ep=4, dp=4)
        if np.any(part.unread_s)
    }
    parts = {part.name: part.forward_s for part in experts(stack=early, ep=4, dp=4)}
    assert set(unread) == {"experts second layer", "shared experts second layer", "expert exchange"}
    for name, share in (
        ("experts second layer", 1.0),
        ("shared experts second layer", 1.0),
        ("expert exchange", 0.5),
    ):
        assert unread[name] == pytest.approx(share * parts[name])
    latent = replace(MOE, moe=replace(SPEC, latent_dim=256))
    assert not any(np.any(part.unread_s) for part in experts(latent, stack=early, ep=4, dp=4))
