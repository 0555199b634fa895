from __future__ import annotations

import numpy as np
import pytest

from meshwright.values.hardware.serving_tables import (
    cached_attention_seconds,
    cached_latent_seconds,
    engine_all_reduce_seconds,
    expert_layer_seconds,
    serving_facts,
    spread_expert_seconds,
)
from meshwright.values.hardware.tables import TABLE_CHIPS

CONTEXTS = np.array([128.0, 1024.0, 8192.0, 65536.0])


@pytest.mark.parametrize("chip", TABLE_CHIPS)
@pytest.mark.parametrize("kernels", ["sglang", "trtllm", "vllm"])
def test_a_longer_cache_takes_longer(chip: str, kernels: str) -> None:
    found = cached_attention_seconds(
        chip,
        kernels=kernels,
        stored="bf16",
        head_dim=128.0,
        group=8.0,
        kv_sequences=64.0,
        context=CONTEXTS,
    )
    assert found is not None
    assert (np.diff(found.seconds) >= 0).all()
    assert 1e-6 < found.seconds[0] < 1e-4
    assert serving_facts(chip)["chip"] == chip


def test_figures_of_the_source() -> None:
    """H100, SGLang 0.5.14 and vLLM 0.24: all-reduce of 64 MiB over 8 ranks; B200: experts of
    DeepSeek in fp8 blocks over 8 ranks."""
    reduced = engine_all_reduce_seconds("h100", kernels="sglang", ranks=8.0, buffer_bytes=2.0**26)
    assert reduced is not None
    assert float(reduced.seconds) == pytest.approx(320e-6, rel=0.03)
    experts = expert_layer_seconds(
        "b200",
        kernels="sglang",
        weights="fp8-blockwise",
        tokens_per_expert=64 * 8 / 256,
        experts=256.0,
        hidden=7168.0,
        inter=256.0,
    )
    assert experts is not None
    assert float(experts.seconds) == pytest.approx(178e-6, rel=0.05)


def test_experts_with_tokens_of_all_ranks_by_the_source() -> None:
    """SGLang 0.5.10 on H200 over 16 and 64 ranks, 64 and 8 tokens a rank, the faster of two skewed
    routings: 249 and 80 us."""
    for experts, per_rank, seconds in ((16.0, 64, 249e-6), (4.0, 8, 80e-6)):
        tokens = per_rank * 8 / experts
        found = spread_expert_seconds(
            "h200",
            kernels="sglang",
            weights="fp8-blockwise",
            tokens_per_expert=tokens,
            experts=experts,
            hidden=7168,
            inter=2048,
        )
        assert found is not None
        assert float(found.seconds) == pytest.approx(seconds, rel=0.2)
    half = spread_expert_seconds(
        "h200",
        kernels="sglang",
        weights="fp8-blockwise",
        tokens_per_expert=16.0,
        experts=4.0,
        hidden=7168,
        inter=1024,
    )
    whole = spread_expert_seconds(
        "h200",
        kernels="sglang",
        weights="fp8-blockwise",
        tokens_per_expert=16.0,
        experts=4.0,
        hidden=7168,
        inter=2048,
    )
    assert half is not None
    assert whole is not None
    assert float(half.seconds) == pytest.approx(float(whole.seconds) / 2)
    assert (
        spread_expert_seconds(
            "h200",
            kernels="vllm",
            weights="nvfp4",
            tokens_per_expert=4.0,
            experts=4.0,
            hidden=7168,
            inter=2048,
        )
        is None
    )


def test_an_engine_without_a_table_takes_another_ones_and_a_chip_without_has_none() -> None:
    own = cached_latent_seconds(
        "h100", kernels="trtllm", stored="bf16", heads=16.0, batch=32.0, context=4096.0
    )
    lent = cached_latent_seconds(
        "h100", kernels="vllm", stored="bf16", heads=16.0, batch=32.0, context=4096.0
    )
    assert own is not None
    assert lent is not None
    assert float(own.seconds) == float(lent.seconds)
    assert (
        cached_latent_seconds(
            "mi300x", kernels="vllm", stored="bf16", heads=16.0, batch=32.0, context=4096.0
        )
        is None
    )
    assert serving_facts("mi300x") == {}
