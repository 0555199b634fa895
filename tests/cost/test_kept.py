"""What attention keeps, on paper."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cost.cases import GPT, LLAMA, MLA, POOL, STACK, WORK, named, saved, site

from meshwright.cost.attention import attention_parts
from meshwright.cost.kept import attention_bytes, turned_inputs
from meshwright.cost.operators import Site
from meshwright.cost.step import price
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import Block, ModelSpec

SELF = Block(kind="attention")
QUERIES, KEYS = 2048 * 1024 * 2, 2048 * 256 * 2
"""Bytes of 16 query heads and of 4 key or value heads, each 64 wide, of 2,048 tokens."""
KEEPS = replace(STACK, rotation_keeps_input=True)


def turned(at: Site) -> float:
    return sum(saved(part) for part in turned_inputs(at, SELF))


def test_a_rotation_needs_its_angles_alone() -> None:
    assert turned_inputs(site(LLAMA), SELF) == []
    assert turned_inputs(site(GPT, stack=KEEPS), SELF) == [], "learned positions turn nothing"
    assert turned_inputs(site(MLA, stack=KEEPS), SELF) == []


def test_a_rotation_that_keeps_its_input_keeps_the_projections_output_whole() -> None:
    """Queries and keys as they were, and the values that lie in the same tensor: the core has been
    handed a copy."""
    assert turned(site(LLAMA, stack=KEEPS)) == QUERIES + 2 * KEYS
    assert turned(site(LLAMA, stack=KEEPS, tp=4)) == (QUERIES + 2 * KEYS) / 4
    core = named(attention_parts(site(LLAMA, stack=KEEPS), SELF), "queries, keys and values")
    assert turned(site(LLAMA, stack=KEEPS)) == saved(core)


def test_attentions_own_bytes_by_hand() -> None:
    """The norm's output (2 sbh) and the core's (2 sbh), queries, keys, values and row sums (4 bytes
    a head and token); not the norm's input, which the layer keeps."""
    parts = tuple(attention_parts(site(LLAMA), SELF))
    sbh = 2048 * 1024
    assert attention_bytes(((SELF, 1.0, parts),)) == pytest.approx(
        2 * sbh + 2 * sbh + QUERIES + 2 * KEYS + 4 * 16 * 2048
    )
    assert attention_bytes(((SELF, 0.25, parts),)) == pytest.approx(
        attention_bytes(((SELF, 1.0, parts),)) / 4
    )
    assert attention_bytes(((Block(kind="mlp"), 1.0, parts),)) == 0


def test_attention_on_the_host_leaves_the_device() -> None:
    def activations(recompute: str, *, away: bool, model: ModelSpec = LLAMA) -> float:
        modules = ("mlp",) if recompute == "selective" else ()
        layout = Layout(gbs=1, recompute=recompute, recompute_modules=modules)  # type: ignore[arg-type]
        stack = replace(STACK, offloads_attention=away)
        priced = price(Layouts.of([layout]), model=model, pool=POOL, work=WORK, stack=stack)
        return float(priced.memory.terms["activations"][0, 0])

    own = float(attention_bytes(((SELF, 1.0, tuple(attention_parts(site(LLAMA), SELF))),))[0])
    for recompute in ("none", "selective"):
        there, gone = (activations(recompute, away=away) for away in (False, True))
        assert there - gone == pytest.approx(LLAMA.num_layers * own)
    assert activations("full", away=True) == pytest.approx(activations("full", away=False))
