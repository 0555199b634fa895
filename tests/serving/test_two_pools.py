from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.cases import clock, plain_engine, prices

from meshwright.serving.engine import Worker
from meshwright.serving.load import Workers, closed_loop_on_two_pools
from meshwright.serving.simulate import Requests
from meshwright.serving.steady import prompt_s
from meshwright.values.errors import ConfigError

ENGINE = plain_engine(mixed=False, poll_steps=0)
TOLD = clock(prices("llama3.1-8b", worker=Worker(tp=1), engine=ENGINE))
MANY = 1024


def pool(count: int = 1, sequences: int = MANY) -> Workers:
    return Workers(clock=TOLD, count=count, sequences=sequences)


def test_one_request_by_hand() -> None:
    found = closed_loop_on_two_pools(
        pool(), pool(), Requests(prompts=[1000], outputs=[3]), concurrency=1, transfer_s=0.5
    )
    assert found.ttft_s[0] == pytest.approx(prompt_s(TOLD, new=1000) + 0.5)
    assert found.tpot_s[0] == pytest.approx(TOLD.running_s(1, 1000))
    assert found.e2e_s[0] == pytest.approx(found.ttft_s[0] + 2 * found.tpot_s[0])


def test_a_request_takes_its_time_outside_and_until_the_worker_looks() -> None:
    engine = replace(ENGINE, poll_steps=4, request_s=0.1, handover_s=0.2)
    told = Workers(
        clock=clock(prices("llama3.1-8b", worker=Worker(tp=1), engine=engine)),
        count=1,
        sequences=MANY,
    )
    requests = Requests(prompts=[1000], outputs=[3])
    plain, found = (
        closed_loop_on_two_pools(pool(), one, requests, concurrency=1, transfer_s=0.0)
        for one in (pool(), told)
    )
    assert found.ttft_s[0] - plain.ttft_s[0] == pytest.approx(0.3 + 2 * plain.tpot_s[0])


def test_prompts_wait_for_the_only_worker() -> None:
    """Worked: prompts too long for one iteration follow one another."""
    requests = Requests(prompts=[8000] * 3, outputs=[2] * 3)
    found = closed_loop_on_two_pools(pool(), pool(), requests, concurrency=3, transfer_s=0.0)
    one = prompt_s(TOLD, new=8000)
    assert found.ttft_s.tolist() == pytest.approx([one, 2 * one, 3 * one])


def test_requests_go_to_workers_in_turn_though_another_has_room() -> None:
    """Worked: one sequence a worker; the third request is the first worker's, whose answer is long,
    though the second worker is idle."""
    requests = Requests(prompts=[8, 8, 8], outputs=[1001, 2, 2])
    found = closed_loop_on_two_pools(
        pool(4), pool(2, sequences=1), requests, concurrency=2, transfer_s=0.0
    )
    first_ends = found.e2e_s[0]
    assert found.sent_s[2] == pytest.approx(found.e2e_s[1])
    assert found.sent_s[2] + found.ttft_s[2] == pytest.approx(first_ends)


def test_sequences_beyond_a_workers_wait_for_one_to_end() -> None:
    """Worked: of two answers on a worker for one, the second begins when the first ends."""
    requests = Requests(prompts=[8, 8], outputs=[101, 101])
    found = closed_loop_on_two_pools(
        pool(2), pool(1, sequences=1), requests, concurrency=2, transfer_s=0.0
    )
    assert found.ttft_s[1] == pytest.approx(found.e2e_s[0])
    assert found.tpot_s.tolist() == pytest.approx([found.tpot_s[0]] * 2)


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 12),
    first=st.integers(1, 3),
    second=st.integers(1, 3),
    sequences=st.integers(1, 8),
    outputs=st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_every_request_ends_once_and_no_sooner_than_its_work(
    clients: int, first: int, second: int, sequences: int, outputs: list[int]
) -> None:
    requests = Requests(prompts=[500] * len(outputs), outputs=outputs)
    found = closed_loop_on_two_pools(
        pool(first), pool(second, sequences), requests, concurrency=clients, transfer_s=0.01
    )
    assert found.output_tokens == sum(outputs)
    least = TOLD.running_s(1, 500)
    assert (found.ttft_s >= 0.01 + prompt_s(TOLD, new=500) - 1e-9).all()
    assert (np.nan_to_num(found.tpot_s, nan=1.0) >= 0.99 * least).all()
    begins, ends = found.sent_s, found.sent_s + found.e2e_s
    for when in begins:
        assert ((begins <= when) & (ends > when + 1e-9)).sum() <= clients


def test_no_client_is_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency=0"):
        closed_loop_on_two_pools(
            pool(), pool(), Requests(prompts=[1], outputs=[1]), concurrency=0, transfer_s=0.0
        )
