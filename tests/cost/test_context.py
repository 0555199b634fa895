"""Ways of context parallelism beside the plain ring, and the fastest of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.cost.cases import LLAMA, MEMORY_BYTES_PER_S, MLA, POOL, STACK, site

from meshwright.cost.attention_core import attention_core
from meshwright.cost.context import CANDIDATES, exchange_ways, ring_steps, spread_core
from meshwright.cost.operators import Part
from meshwright.cost.stages import distinct_shapes
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.stack import ContextExchange

SELF = Block(kind="attention")
EIGHT = replace(LLAMA, num_kv_heads=8)
"""16 heads of 64, 8 of keys and values, hidden 1024."""


def by(way: ContextExchange, model: ModelSpec = EIGHT, **layout: Any) -> list[Part]:
    """Return core and exchange of one way."""
    at = site(model, stack=replace(STACK, context_exchange=way), **layout)
    return spread_core(at, SELF, attention_core)


def seconds(parts: list[Part], term: str | None = None) -> float:
    """Forward and backward of the parts of a term, or of all."""
    return sum(
        float(np.max(part.forward_s + part.backward_s))
        for part in parts
        if term in (None, part.term)
    )


def test_gathered_keys_and_values_by_hand() -> None:
    """cp = 4 of 2048 tokens: keys and values of 2048 x 8 x 64 halves each are gathered and put in
    order, 2 bytes moved each; backward again, and gradients scattered. Ring: 3/4 of them at
    400e9, a quarter's own copy at 800e9, 3 hops of 1 us and of a message's ramp, set-up."""
    exchange = next(p for p in by("kv-gather", cp=4) if p.term == "cp_comm")
    whole = 2048 * 8 * 64 * 2
    copies = 2 * 2 * whole / MEMORY_BYTES_PER_S
    gathers = exchange.forward_s - copies
    assert gathers > 2 * (0.75 * whole / 400e9 + whole / 4 / 800e9)
    assert exchange.backward_s == pytest.approx(2 * exchange.forward_s)
    assert ring_steps(site(EIGHT, stack=replace(STACK, context_exchange="kv-gather"), cp=4)) == 1


def test_two_levels_swap_inside_a_domain_and_ring_between() -> None:
    """cp = 8 in servers of 4: swaps among 4, a ring of 2 that merges once; a swap among all 8 and a
    ring of 8 are the ends."""
    pool = replace(POOL, node=replace(POOL.node, chips_per_node=4, domain_size=4))
    at = site(EIGHT, stack=replace(STACK, context_exchange="two-level"), pool=pool, cp=8)
    assert ring_steps(at).tolist() == [2]
    swap, merge, ring = spread_core(at, SELF, attention_core)[1:]
    assert merge.forward_s == pytest.approx(256 * 16 * 64 * 12 / MEMORY_BYTES_PER_S + 2 * 2e-6)
    assert seconds([swap]) > 0 and seconds([ring]) > 0
    assert merge.kernels_forward == 2


def test_key_heads_bound_the_inner_level() -> None:
    """8 key-value heads over tp = 2 and cp = 8 in a server of 8: 4 ranks may swap."""
    at = site(EIGHT, stack=replace(STACK, context_exchange="two-level"), cp=8, tp=2)
    assert ring_steps(at).tolist() == [2]
    odd = site(replace(EIGHT, num_kv_heads=1), stack=at.stack, cp=8)
    assert ring_steps(odd).tolist() == [8]


@pytest.mark.parametrize("layout", [{"cp": 2}, {"cp": 8}, {"cp": 4, "tp": 4}, {"cp": 16}])
def test_the_fastest_is_the_least_of_those_that_may_run(layout: dict[str, int]) -> None:
    fits = 8 % (layout["cp"] * layout.get("tp", 1)) == 0
    tried = {way: seconds(by(way, **layout)) for way in CANDIDATES if way != "all-to-all" or fits}
    assert seconds(by("fastest", **layout)) == pytest.approx(min(tried.values()))


def test_the_way_that_is_priced_is_the_one_that_is_named() -> None:
    """In one column: no context parallelism, a server's ranks, more ranks than key-value heads."""
    for cp in (2, 8, 16):
        at = site(EIGHT, stack=replace(STACK, context_exchange="fastest"), cp=cp)
        (way,) = exchange_ways(at, SELF, attention_core)
        assert seconds(by("fastest", cp=cp)) == pytest.approx(seconds(by(way, cp=cp)))
        assert way != "all-to-all" or cp <= 8


def test_latent_attention_stays_on_a_ring_and_windows_off_it() -> None:
    fastest = replace(STACK, context_exchange="fastest")
    assert exchange_ways(site(MLA, stack=fastest, cp=4), SELF, attention_core) == ("ring",)
    windowed = replace(EIGHT, window=512)
    assert exchange_ways(site(windowed, stack=fastest, cp=4), SELF, attention_core) == (
        "all-to-all",
    )


def test_without_context_parallelism_nothing_is_added() -> None:
    for way in (*CANDIDATES, "fastest"):
        assert [part.term for part in by(way)] == ["attention"]  # type: ignore[arg-type]


def test_a_column_has_each_shapes_own_way() -> None:
    """What every layout costs alone it costs beside others, where their ways differ."""
    layouts = [Layout(cp=cp, tp=tp, gbs=64, dp=2) for cp, tp in ((1, 1), (2, 1), (16, 1), (4, 4))]
    shapes, at = distinct_shapes(Layouts.of(layouts))
    place = replace(site(EIGHT, stack=replace(STACK, context_exchange="fastest")), shapes=shapes)
    assert len(set(exchange_ways(place, SELF, attention_core))) > 1
    parts = spread_core(place, SELF, attention_core)
    totals = sum((part.forward_s + part.backward_s for part in parts), np.zeros(len(layouts)))[at]
    alone = [seconds(by("fastest", cp=layout.cp, tp=layout.tp)) for layout in layouts]
    assert totals == pytest.approx(alone)
