"""Layers with a state: Qwen3.5-397B has 45 of gated delta attention and 15 of attention, Nemotron 3
Nano 23 of Mamba-2 and 6 of attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.serving.cases import clock, plain_engine, prices

from meshwright import serving
from meshwright.serving.engine import Worker
from meshwright.serving.memory import (
    cache_bytes_per_token,
    memory_of,
    state_bytes,
    state_tokens,
    weight_bytes,
)
from meshwright.serving.recurrent import delta_rate, delta_rule_flops, recurrent_of
from meshwright.serving.simulate import Requests, closed_loop
from meshwright.serving.steady import most_running
from meshwright.values.errors import ConfigError, LayoutError
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import Block

QWEN = "qwen3.5-397b-a17b"
NANO = "nemotron-3-nano-30b-a3b"
HYBRIDS = (QWEN, "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "kimi-k3", NANO, "nemotron-3-ultra")


def test_states_of_qwen_by_hand() -> None:
    """Worked: 64 value heads of 128 x 128 values in fp32, and the last 3 tokens of the convolution
    over 2 * 16 * 128 + 64 * 128 values in 16 bits; 15 of 60 layers keep keys and values."""
    one = 64 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) * 2
    priced = prices(QWEN, chip="b200", worker=Worker(tp=8))
    assert state_bytes(priced) == pytest.approx(45 * one / 8)
    assert cache_bytes_per_token(priced) == pytest.approx(15 * 2 * 1 * 256 * 2)
    assert state_tokens(priced) == pytest.approx(45 * one / 8 / (15 * 1024))


def test_states_of_a_mamba_model_by_hand() -> None:
    """Worked: 64 heads of 64 x 128 values in fp32, and 3 tokens of 64 * 64 + 2 * 8 * 128 values."""
    one = 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2
    priced = prices(NANO, chip="h100", worker=Worker(tp=1), weights="bf16")
    mixers = 23
    assert state_bytes(priced) == pytest.approx(mixers * one)


def test_the_rule_by_hand() -> None:
    """Worked: 2 * 64 * 5 * 128 inside a chunk and 6 * 128^2 for the states."""
    assert delta_rule_flops(key_dim=128, value_dim=128) == 81920 + 98304
    layer = recurrent_of(find_model(QWEN), Block(kind="delta"), tp=4)
    assert layer.flops == 16 * 180224
    assert layer.products == ((2 * 512 + 2 * 2048 + 2 * 16, 4096), (4096, 2048))


@pytest.mark.parametrize("model", HYBRIDS)
def test_weights_of_all_chips_are_the_model(model: str) -> None:
    priced = prices(model, chip="b200", worker=Worker(tp=8, ep=8), weights="bf16")
    spec = priced.model
    per_chip = 2 * model_params(spec).total / 8
    assert per_chip <= weight_bytes(priced) < 1.12 * per_chip  # what every rank holds whole


def test_decoding_reads_and_writes_the_states() -> None:
    """Worked: no cache of the delta layers grows with the context."""
    priced = prices(QWEN, chip="b200", worker=Worker(tp=8), engine=plain_engine())
    chip = priced.pool.node.chip
    rate = chip.memory_bytes_per_s * chip.memory_efficiency
    layer = recurrent_of(priced.model, Block(kind="delta"), tp=8)
    step = float(priced.kernels.recurrent_step_s(layer, np.array(64.0)))
    assert step == pytest.approx(2 * 64 * layer.state_bytes / rate + chip.ramp_s)
    short, long = (
        float(priced.running_s(batch=np.array(64.0), context=np.array(context)))
        for context in (1e3, 64e3)
    )
    assert short > 45 * step
    dense = float(
        prices("llama3.1-70b", chip="b200", worker=Worker(tp=8)).running_s(
            batch=np.array(64.0), context=np.array(64e3)
        )
    )
    assert long - 45 * step < dense


def test_prompts_run_at_the_measured_rate() -> None:
    assert delta_rate("sglang", "b200") == 98.7e12
    assert delta_rate("sglang", "mi300x") is None
    priced = prices(QWEN, chip="b200", worker=Worker(tp=8), engine="sglang")
    layer = recurrent_of(priced.model, Block(kind="delta"), tp=8)
    tokens = np.array(8192.0)
    chip = priced.pool.node.chip
    read = 2 * 8192 * layer.inputs / (chip.memory_bytes_per_s * chip.memory_efficiency)
    found = float(priced.kernels.recurrent_prompt_s(layer, tokens=tokens, kind="delta"))
    assert found == pytest.approx(8192 * layer.flops / 98.7e12 + read)


def test_time_of_a_prompt_grows_as_its_length_in_layers_with_states() -> None:
    priced = prices(NANO, chip="h100", worker=Worker(tp=1), weights="bf16")
    layer = recurrent_of(priced.model, Block(kind="mamba"), tp=1)
    one, four = (
        float(priced.kernels.recurrent_prompt_s(layer, tokens=np.array(n), kind="mamba"))
        for n in (2048.0, 8192.0)
    )
    assert four == pytest.approx(4 * one)


def test_states_take_room_from_requests() -> None:
    told = clock(prices(QWEN, chip="b200", worker=Worker(tp=8)))
    each = 1000 + 50 + state_tokens(told.prices)
    room = int(10.5 * each)
    lengths = {"input_len": 1000, "output_len": 100}
    assert most_running(told, **lengths, cache_tokens=room) == 10
    ask = Requests(prompts=[1000] * 4, outputs=[100] * 4)
    with pytest.raises(ConfigError, match="does not fit"):
        closed_loop(told, ask, concurrency=1, slots=8, cache_tokens=1100)
    few, many = (
        closed_loop(told, ask, concurrency=4, slots=8, cache_tokens=int(count * 1.1 * each))
        for count in (1, 4)
    )
    assert few.makespan_s > many.makespan_s


def test_memory_holds_a_state_for_each_sequence() -> None:
    priced = prices(QWEN, chip="b200", worker=Worker(tp=8))
    memory = memory_of(priced, iteration_tokens=8192)
    assert memory.used(memory.state_tokens) - memory.used(0) == pytest.approx(state_bytes(priced))
    assert memory_of(prices(), iteration_tokens=8192).state_tokens == 0


def test_heads_of_states_are_whole_on_a_rank() -> None:
    with pytest.raises(LayoutError, match="key_heads"):
        serving.predict(
            serving.ServingRequest.of(
                model=QWEN, cluster="b200:32", input_len=100, output_len=10, weights=("bf16",)
            ),
            worker=Worker(tp=32),
            weights="bf16",
            cache="bf16",
            concurrency=1,
        )


def test_the_latent_of_experts_is_projected_to_and_from() -> None:
    spec = find_model("nemotron-3-ultra")
    assert spec.moe is not None
    assert spec.moe.latent_dim is not None
    with_, without = (
        float(replace(priced, model=model).by_tokens_s(np.array(64.0))["linear"])
        for priced, model in (
            (prices("nemotron-3-ultra", chip="b200", worker=Worker(tp=8, ep=8)), one)
            for one in (spec, replace(spec, moe=replace(spec.moe, latent_dim=None)))
        )
    )
    assert with_ > without


@pytest.mark.parametrize(
    ("model", "cluster"),
    [
        ("qwen3.5-35b-a3b", "h100:8"),
        ("qwen3-next-80b-a3b", "h200:4"),
        ("kimi-linear-48b-a3b", "h100:8"),
        (NANO, "h100:1"),
        ("nemotron-h-8b", "h100:1"),
    ],
)
def test_hybrids_are_planned(model: str, cluster: str) -> None:
    found = serving.plan(model=model, cluster=cluster, input_len=2000, output_len=500)
    assert found.options
    assert all(one.tpot_s > 0 and one.ttft_s > 0 for one in found.options)
