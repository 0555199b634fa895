"""Segments of layers, and shapes that make no sense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from tests.values.models.strategies import specs

from meshwright.values.errors import ConfigError
from meshwright.values.models.catalogue import find_model, model_from_dims, presets
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import HybridSpec, MambaSpec, ModelSpec, MoeSpec

LLAMA = find_model("llama3-8b")


def count_of(model: ModelSpec, kind: str) -> float:
    return sum(
        segment.num_layers * count
        for segment in model.segments
        for block, count in segment.blocks
        if block.kind == kind
    )


@given(specs())
def test_segments_hold_all_layers(model: ModelSpec) -> None:
    assert sum(segment.num_layers for segment in model.segments) == model.total_layers
    assert all(count > 0 for segment in model.segments for _, count in segment.blocks)


@given(specs())
def test_experts_are_where_the_spec_says(model: ModelSpec) -> None:
    assert count_of(model, "moe") == pytest.approx(model.num_moe_layers)
    if model.hybrid is None:
        assert count_of(model, "attention") == pytest.approx(model.total_layers)
        assert count_of(model, "mlp") == pytest.approx(model.total_layers - model.num_moe_layers)


def test_segments_of_known_models() -> None:
    assert [segment.num_layers for segment in find_model("deepseek-v3").segments] == [3, 58]
    assert [segment.num_layers for segment in find_model("t5-11b").segments] == [24, 24]
    assert count_of(find_model("llama4-maverick"), "moe") == pytest.approx(24)
    gemma = find_model("gemma3-27b").segments[0]
    windows = {
        block.window: count * 62 for block, count in gemma.blocks if block.kind == "attention"
    }
    assert windows == pytest.approx({None: 10, 1024: 52})
    assert {
        kind: count_of(find_model("nemotron-3-nano"), kind)
        for kind in ("attention", "mamba", "moe")
    } == pytest.approx({"attention": 6, "mamba": 23, "moe": 23})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers=0: expected a number from 1"),
        ({"vocab": 10**9}, "vocab=1000000000: expected a number from 1 to 100000000"),
        ({"num_kv_heads": 5}, "num_heads=32 is not divisible by num_kv_heads=5"),
        ({"ffn": 0}, "ffn=0: expected the width"),
        ({"encoder_layers": 2}, "encoder_layers=2: only an encoder-decoder model"),
        ({"family": "encoder-decoder"}, "encoder_layers=0: only an encoder-decoder model"),
        ({"family": "encoder", "window": 8}, "modelled in decoders only"),
        ({"window": 0}, "window=0: expected a number from 1"),
        ({"mtp_layers": -1}, "mtp_layers=-1: expected a number from 0"),
        (
            {"mamba": MambaSpec(state_dim=1, num_heads=1, head_dim=1, num_groups=1)},
            "needs the counts of layers",
        ),
        (
            {"hybrid": HybridSpec(attention_layers=1, mamba_layers=1, ffn_layers=1)},
            "hybrid parts sum to 3, expected num_layers=32",
        ),
        (
            {"hybrid": HybridSpec(attention_layers=16, mamba_layers=16, ffn_layers=0)},
            "16 Mamba layers need the dims",
        ),
        (
            {"moe": MoeSpec(num_experts=2, top_k=1, expert_ffn=1, first_dense_layers=32)},
            "leave no layer of num_layers=32",
        ),
    ],
)
def test_shapes_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(LLAMA, **changes)


def test_more_experts_visited_than_there_are() -> None:
    with pytest.raises(ConfigError, match="top_k=9 is more than num_experts=8"):
        MoeSpec(num_experts=8, top_k=9, expert_ffn=1)


def test_dims_by_hand_give_the_known_shape() -> None:
    by_hand = model_from_dims(
        num_layers=32,
        hidden=4096,
        ffn=14336,
        num_heads=32,
        num_kv_heads=8,
        vocab=128256,
        name="llama3-8b",
    )
    assert by_hand == LLAMA
    experts = model_from_dims(
        num_layers=32,
        hidden=4096,
        ffn=14336,
        num_heads=32,
        num_kv_heads=8,
        vocab=32000,
        num_experts=8,
        top_k=2,
    )
    assert model_params(experts) == model_params(find_model("mixtral-8x7b"))
    t5 = model_from_dims(
        num_layers=6, hidden=512, num_heads=8, vocab=32128, gated=False, family="encoder-decoder"
    )
    assert (t5.ffn, t5.encoder_layers, t5.total_layers) == (2048, 6, 12)
    assert (
        model_from_dims(num_layers=1, hidden=4096, num_heads=32, vocab=9).ffn == 10944
    )  # 8/3 of 4096, rounded up to 64


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            {"num_heads": 30},
            r"num_heads=30 does not divide hidden=4096; .* num_heads of \[16, 32\]",
        ),
        ({"num_heads": 0}, "num_heads=0: expected a number from 1"),
        ({"top_k": 2}, "of no use without the number of experts"),
        ({"num_experts": 2}, "say also how many a token visits"),
        ({"hidden": -1}, "expected a number from 1"),
    ],
)
def test_dims_by_hand_that_make_no_sense(dims: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_from_dims(
            **({"num_layers": 2, "hidden": 4096, "num_heads": 32, "vocab": 32000} | dims)
        )


def test_every_preset_has_a_shape_of_its_own_blocks() -> None:
    for preset in presets():
        assert count_of(preset.spec, "attention") > 0, preset.spec.name
