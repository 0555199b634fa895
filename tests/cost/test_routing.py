"""Tokens on their way to experts, on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.cases import CHIP, MEMORY_BYTES_PER_S, MOE, STACK, WORK, named, site

from meshwright.cost.collectives import all_to_all_s, group_of
from meshwright.cost.kernels import gemm_s
from meshwright.cost.operators import Part, Site
from meshwright.cost.routing import (
    MASK_BYTES,
    busiest_share,
    capacity_of,
    routed_rows,
    routing_parts,
)
from meshwright.values.models.spec import ModelSpec, MoeSpec
from meshwright.values.stack import Stack

TOKENS, HIDDEN = 2048.0, 1024.0
SPEC = MoeSpec(num_experts=8, top_k=2, expert_ffn=512, shared_ffn=256)
PADDED = replace(MOE, moe=replace(SPEC, capacity_factor=1.5))


def routing(place: Site) -> list[Part]:
    tokens = np.array([TOKENS]) * place.shapes.mbs
    return routing_parts(place, routed_rows(place, tokens), np.array([HIDDEN]))


def rows_of(model: ModelSpec, stack: Stack = STACK, **layout: Any) -> tuple[float, float]:
    rows = routed_rows(site(model, stack=stack, **layout), np.array([TOKENS]))
    return float(rows.sent[0]), float(rows.received[0])


def test_a_capacity_is_the_models_else_the_softwares() -> None:
    padding = replace(STACK, expert_capacity=1.1)
    assert capacity_of(site(MOE)) == 0.0
    assert capacity_of(site(MOE, stack=padding)) == 1.1
    assert capacity_of(site(PADDED, stack=padding)) == 1.5


def test_padded_rows_go_through_an_all_to_all() -> None:
    """2048 tokens to 2 experts each are 4096 rows; 6144 with 1.5 places for each. Flexible kernels
    drop what is beyond a capacity, and pad nothing."""
    flex = replace(STACK, dispatcher="flex")
    assert rows_of(MOE) == (4096.0, 4096.0)
    assert rows_of(PADDED) == (6144.0, 6144.0)
    assert rows_of(PADDED, flex) == (4096.0, 4096.0)
    place = site(PADDED, ep=4, dp=4)
    group = group_of(place.shapes.ep, place.shapes.etp, place.pool)
    exchange = named(routing(place), "expert exchange")
    assert exchange.forward_s == pytest.approx(
        2 * all_to_all_s(group, np.array([6144 * HIDDEN * 2.0]))
    )
    assert named(routing(site(PADDED)), "permute and unpermute").moved_bytes == pytest.approx(
        1.5 * named(routing(site(MOE)), "permute and unpermute").moved_bytes
    )


def test_dropped_tokens_bound_the_busiest_rank() -> None:
    """Where all tokens go to one rank of 8 it has 8 times the mean, or as many as its experts may
    take."""
    flex, worst = replace(STACK, dispatcher="flex"), replace(WORK, routing="worst")
    wide = MoeSpec(num_experts=64, top_k=8, expert_ffn=512)

    def busiest(capacity: float | None) -> float:
        model = replace(MOE, moe=replace(wide, capacity_factor=capacity))
        return float(busiest_share(site(model, worst, stack=flex, ep=8, dp=8))[0])

    assert [busiest(capacity) for capacity in (None, 10.0, 2.0, 1.0)] == [8.0, 8.0, 2.0, 1.0]


def test_one_hot_masks_are_products_over_every_place() -> None:
    """GShard's einsums: 2048 tokens by 6144 places by 1024, once each way forward, and once more
    for the gradient of the weights; 34 and 14 bytes a pair of token and place at 1 TB/s."""
    place = site(PADDED, stack=replace(STACK, token_picking="one-hot"))
    part = named(routing(place), "one-hot dispatch")

    def product(m: float, n: float, k: float) -> float:
        sides = (np.array([side]) for side in (m, n, k))
        m_side, n_side, k_side = sides
        return float(gemm_s(CHIP, m=m_side, n=n_side, k=k_side, precision="bf16")[0])

    there, back = product(6144, HIDDEN, TOKENS), product(TOKENS, HIDDEN, 6144)
    pairs = TOKENS * 6144
    assert part.forward_s == pytest.approx(there + back + pairs * 34 / MEMORY_BYTES_PER_S)
    assert part.backward_s == pytest.approx(
        there + back + product(TOKENS, 6144, HIDDEN) + pairs * 14 / MEMORY_BYTES_PER_S
    )
    assert part.flops == 2 * 2 * pairs * HIDDEN
    assert part.saved_bytes == pairs * 5
    assert MASK_BYTES == (34.0, 14.0)
    names = [one.name for one in routing(site(PADDED))]
    assert "one-hot dispatch" not in names
