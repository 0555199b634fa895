from __future__ import annotations

import pytest
from tests.serving.cases import prices

from meshwright.serving.engine import Worker
from meshwright.serving.memory import cache_bytes_per_token, memory_of, weight_bytes
from meshwright.values.models.params import model_params
from meshwright.values.units import GIB


def test_weights_of_all_chips_are_the_model() -> None:
    priced = prices(weights="bf16", worker=Worker(tp=8))
    assert 8 * weight_bytes(priced) == pytest.approx(
        2 * model_params(priced.model).total, rel=0.002
    )


def test_fp8_halves_the_layers_and_leaves_the_ends() -> None:
    whole, half = (weight_bytes(prices(weights=weights)) for weights in ("bf16", "fp8"))
    ends = 2 * 2 * 128256 * 8192 / 4
    assert half - ends == pytest.approx((whole - ends) / 2, rel=0.001)


def test_a_cached_token_of_llama_70b() -> None:
    assert cache_bytes_per_token(prices(worker=Worker(tp=1))) == 80 * 2 * 8 * 128 * 2
    assert cache_bytes_per_token(prices(worker=Worker(tp=8), cache="fp8")) == 80 * 2 * 1 * 128
    assert (
        cache_bytes_per_token(prices(worker=Worker(tp=16))) == 80 * 2 * 1 * 128 * 2
    )  # eight key heads on sixteen chips: two copies


def test_a_cached_token_of_deepseek_is_its_latent_on_every_chip() -> None:
    assert cache_bytes_per_token(prices("deepseek-v3", worker=Worker(tp=8))) == 61 * 576 * 2


def test_room_is_what_weights_leave() -> None:
    memory = memory_of(prices(worker=Worker(tp=4)), iteration_tokens=8192)
    assert memory.used(memory.cache_tokens) <= memory.limit < memory.used(memory.cache_tokens + 2)
    assert (
        300_000 < memory.cache_tokens < 700_000
    )  # 71 GiB less 17.3 of weights, 4 of the engine: 50 GiB at 80 KiB a token
    assert (
        memory_of(prices("deepseek-v3", worker=Worker(tp=8)), iteration_tokens=8192).cache_tokens
        == 0
    )
    assert memory.base == 3 * GIB
