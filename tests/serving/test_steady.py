from __future__ import annotations

import numpy as np
import pytest
from tests.serving.cases import clock, plain_engine, prices

from meshwright.serving.engine import Worker
from meshwright.serving.simulate import Requests, closed_loop
from meshwright.serving.steady import (
    batched_prompt_s,
    decode_s,
    disaggregated,
    front_s,
    matching_workers,
    most_running,
    prompt_s,
    steady,
)

TOLD = clock(prices("llama3.1-8b", worker=Worker(tp=1)))


@pytest.mark.parametrize("clients", [1, 8, 64])
def test_closed_form_and_simulator_agree_where_ends_are_spread(clients: int) -> None:
    rng = np.random.default_rng(7)
    count = 40 * clients
    prompts, outputs = (
        rng.integers(500, 1500, count).tolist(),
        rng.integers(100, 500, count).tolist(),
    )
    run = closed_loop(
        TOLD,
        Requests(prompts=prompts, outputs=outputs),
        concurrency=clients,
        slots=256,
        cache_tokens=10**9,
    )
    closed = steady(TOLD, concurrency=float(clients), input_len=1000, output_len=300)
    assert closed.tpot_s == pytest.approx(float(np.nanmean(run.tpot_s)), rel=0.1)
    assert closed.requests_per_s * 300 == pytest.approx(run.tokens_per_s, rel=0.15)


def test_littles_law_holds() -> None:
    found = steady(TOLD, concurrency=32.0, input_len=1000, output_len=300)
    assert found.requests_per_s * found.e2e_s == pytest.approx(32.0)
    assert found.e2e_s == pytest.approx(found.ttft_s + 299 * found.tpot_s)


def test_the_front_process_is_a_queue_of_equal_services() -> None:
    """Worked: 1000 tokens of 10 us are 10 ms; 50 a second keep it half busy, and the mean wait of
    half a service is added."""
    told = clock(prices("llama3.1-8b", worker=Worker(tp=1), engine=plain_engine(token_s=1e-5)))
    assert front_s(told, input_len=1000, requests_per_s=0.0) == pytest.approx(0.010)
    assert front_s(told, input_len=1000, requests_per_s=50.0) == pytest.approx(0.015)


def test_a_fraction_of_a_sequence_lies_between() -> None:
    assert decode_s(TOLD, 2.25, 1000) == pytest.approx(
        0.75 * TOLD.running_s(2, 1000) + 0.25 * TOLD.running_s(3, 1000)
    )


def test_chunks_beside_running_sequences_cost_no_more_than_a_prompt_alone() -> None:
    assert 0 < prompt_s(TOLD, new=4000, beside=16) < prompt_s(TOLD, new=4000)
    assert prompt_s(TOLD, new=1000, before=3000) < prompt_s(TOLD, new=4000)


def test_room_for_running_sequences() -> None:
    told = clock(prices("llama3.1-8b", engine=plain_engine(cache_reserved=0.5, max_sequences=20)))
    assert most_running(told, input_len=1000, output_len=200, cache_tokens=11_000) == 10
    assert most_running(told, input_len=1000, output_len=200, cache_tokens=10**9) == 20
    assert most_running(told, input_len=1000, output_len=200, cache_tokens=1199) == 0


def test_two_pools_by_littles_law_and_never_beyond_the_prompts() -> None:
    load = {"input_len": 4000, "output_len": 200, "transfer_s": 0.01}
    few = disaggregated(TOLD, TOLD, prefill_workers=1, decode_workers=1, concurrency=4.0, **load)  # type: ignore[arg-type]
    many = disaggregated(TOLD, TOLD, prefill_workers=1, decode_workers=8, concurrency=500.0, **load)  # type: ignore[arg-type]
    assert few.requests_per_s * few.e2e_s == pytest.approx(4.0, rel=0.01)
    assert many.requests_per_s <= 1 / batched_prompt_s(TOLD, new=4000)
    assert few.tpot_s < steady(TOLD, concurrency=4.0, input_len=4000, output_len=200).tpot_s


def test_a_request_takes_a_while_to_get_from_one_pool_to_the_other() -> None:
    here, there = (
        clock(prices("llama3.1-8b", engine=plain_engine(handover_s=seconds)))
        for seconds in (0.0, 0.5)
    )
    load = {
        "input_len": 4000,
        "output_len": 200,
        "transfer_s": 0.01,
        "prefill_workers": 8,
        "decode_workers": 8,
        "concurrency": 1.0,
    }
    found, later = (disaggregated(told, told, **load) for told in (here, there))  # type: ignore[arg-type]
    assert later.ttft_s == pytest.approx(found.ttft_s + 0.5, rel=1e-3)
    assert later.tpot_s == pytest.approx(found.tpot_s)


def test_prompts_that_come_in_together_share_what_tokens_cost() -> None:
    """Worked: with answers of 8 tokens and 400 running, 50 prompts of 100 come in with every
    iteration: t(400 + 5000) - t(400)."""
    told = clock(prices("llama3.1-8b", engine=plain_engine(chunk_tokens=8192)))
    added = (told.tokens_s[400 + 5000] - told.tokens_s[400]) / 50 + told.prompt_attention_s(100, 0)
    found = steady(told, concurrency=400.0 + 1e-6, input_len=100, output_len=8)
    assert found.tpot_s == pytest.approx(
        decode_s(told, found.running, 104) + found.running / 8 * added, rel=0.05
    )


def test_short_prompts_that_the_host_bounds_share_an_iteration() -> None:
    """Worked: an iteration of up to 8 prompts of 1000 tokens whose kernels take 1 s to launch."""
    told = clock(prices("llama3.1-8b", engine=plain_engine(launch_s=1.0 / 400, chunk_tokens=8192)))
    assert told.launch_s > 0.2
    assert batched_prompt_s(told, new=1000) == pytest.approx((told.launch_s + told.head_s[8]) / 8)
    assert batched_prompt_s(told, new=9000) == prompt_s(told, new=9000)


def test_answers_beyond_the_slots_wait_for_their_first_token() -> None:
    """Worked: of 30 clients 24 run, so that by Little's law the wait is 6 / 24 of the other
    answers' time."""
    load = {
        "input_len": 100,
        "output_len": 500,
        "transfer_s": 0.0,
        "prefill_workers": 8,
        "decode_workers": 1,
    }
    found = disaggregated(TOLD, TOLD, concurrency=30.0, slots=24, **load)  # type: ignore[arg-type]
    assert found.running == 24
    assert found.tpot_s == pytest.approx(decode_s(TOLD, 24, 350))
    assert found.ttft_s == pytest.approx(6 / 24 * 499 * found.tpot_s)
    assert found.requests_per_s * found.e2e_s == pytest.approx(30.0)
    free = disaggregated(TOLD, TOLD, concurrency=30.0, **load)  # type: ignore[arg-type]
    assert disaggregated(TOLD, TOLD, concurrency=30.0, slots=64, **load) == free  # type: ignore[arg-type]


def test_prompts_are_matched_to_answers() -> None:
    count = matching_workers(
        TOLD, TOLD, decode_workers=4, concurrency=400.0, input_len=4000, output_len=100
    )
    assert count > 1
    assert (
        matching_workers(
            TOLD, TOLD, decode_workers=4, concurrency=400.0, input_len=40, output_len=4000
        )
        == 1
    )
