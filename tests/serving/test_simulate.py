from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.cases import clock, plain_engine, prices

from meshwright.serving.clock import Clock
from meshwright.serving.engine import Worker
from meshwright.serving.simulate import Requests, closed_loop, open_loop
from meshwright.values.errors import ConfigError

TOLD = clock(prices("llama3.1-8b"))
MUCH = 10**9


def test_one_request_by_hand() -> None:
    found = closed_loop(
        TOLD, Requests(prompts=[1000], outputs=[3]), concurrency=1, slots=8, cache_tokens=MUCH
    )
    front = 1000 * TOLD.prices.engine.token_s
    first = front + TOLD.mixed_s(
        new=1000, attention=TOLD.prompt_attention_s(1000, 0), heads=1, batch=0, context=0
    )
    assert found.ttft_s[0] == pytest.approx(first + TOLD.prices.engine.request_s)
    steps = 2 * TOLD.running_s(1, 1002)
    assert found.makespan_s == pytest.approx(first + steps)
    assert found.tpot_s[0] == pytest.approx(steps / 2)
    assert found.e2e_s[0] == pytest.approx(found.ttft_s[0] + steps)


def test_a_second_client_waits_for_the_first_ones_prompt_where_prompts_stop_answers() -> None:
    told = clock(prices("llama3.1-8b", engine=plain_engine(mixed=False, chunk_tokens=1000)))
    found = closed_loop(
        told,
        Requests(prompts=[1000, 1000], outputs=[2, 2]),
        concurrency=2,
        slots=8,
        cache_tokens=MUCH,
    )
    prompt = told.mixed_s(
        new=1000, attention=told.prompt_attention_s(1000, 0), heads=1, batch=0, context=0
    )
    assert found.ttft_s.tolist() == pytest.approx([prompt, 2 * prompt])
    assert found.tpot_s[0] > prompt


def test_the_front_process_reads_one_prompt_after_the_other() -> None:
    """Worked: reading takes longer than a prompt's iteration, so that the engine gets the prompts
    one by one."""
    told = clock(prices("llama3.1-8b", engine=plain_engine(mixed=False, token_s=1e-3)))
    found = closed_loop(
        told,
        Requests(prompts=[1000] * 3, outputs=[1] * 3),
        concurrency=3,
        slots=8,
        cache_tokens=MUCH,
    )
    prompt = told.mixed_s(
        new=1000, attention=told.prompt_attention_s(1000, 0), heads=1, batch=0, context=0
    )
    assert prompt < 1.0
    assert found.ttft_s.tolist() == pytest.approx([1.0 + prompt, 2.0 + prompt, 3.0 + prompt])


@pytest.mark.parametrize("poll_steps", [1, 4, 30])
def test_a_request_waits_until_the_engine_looks(poll_steps: int) -> None:
    """Worked: the engine looks when the first request's prompt ends and after every `poll_steps`
    steps from there; the second request arrives in the middle of the first step."""
    told = clock(prices("llama3.1-8b", engine=plain_engine(mixed=False, poll_steps=poll_steps)))
    prompt = told.mixed_s(
        new=1000, attention=told.prompt_attention_s(1000, 0), heads=1, batch=0, context=0
    )
    step = told.running_s(1, 1001.5)
    requests = Requests(prompts=[1000, 1000], outputs=[100, 2])
    found = open_loop(told, requests, sent_s=[0.0, prompt + 0.5 * step], slots=8, cache_tokens=MUCH)
    begun = found.sent_s[1] + found.ttft_s[1] - prompt
    assert (begun - prompt) / step == pytest.approx(poll_steps, rel=2e-3)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_request_joins_one_iteration_later_where_the_next_is_under_way(overlap: bool) -> None:
    """Worked: the second request arrives in the middle of the first answer's first step."""
    told = clock(prices("llama3.1-8b", engine=plain_engine(overlap=overlap)))
    prompt = told.mixed_s(
        new=1000, attention=told.prompt_attention_s(1000, 0), heads=1, batch=0, context=0
    )
    step = told.running_s(1, 1001.5)
    requests = Requests(prompts=[1000, 1000], outputs=[100, 2])
    found = open_loop(told, requests, sent_s=[0.0, prompt + 0.5 * step], slots=8, cache_tokens=MUCH)
    both = told.mixed_s(
        new=1000, attention=told.prompt_attention_s(1000, 0), heads=1, batch=1, context=1002
    )
    assert (found.ttft_s[1] - both) / step == pytest.approx(1.5 if overlap else 0.5, abs=0.01)


def test_clients_start_one_after_the_other() -> None:
    told = clock(prices("llama3.1-8b", engine=plain_engine()))
    found = closed_loop(
        told,
        Requests(prompts=[10] * 3, outputs=[2] * 3),
        concurrency=3,
        slots=8,
        cache_tokens=MUCH,
        gap_s=5.0,
    )
    assert found.sent_s.tolist() == [0.0, 5.0, 10.0]
    assert found.ttft_s[1] == pytest.approx(found.ttft_s[0])


@pytest.mark.parametrize(("running", "waited"), [(1, 60), (20, 60), (200, 13)])
def test_prompts_wait_until_every_attention_rank_has_one(running: int, waited: int) -> None:
    """Worked: 1000 tokens an answer and 8 ranks; on a rank with 200 running one ends every 5 steps,
    and the last of the 7 others has one after 5 * (1 + 1/2 + ... + 1/7) = 12.96 steps on average;
    with 20 running it is 129, beyond the limit of 60.
    """
    worker = Worker(tp=1, attention_dp=8)
    told = clock(
        prices(
            "llama3.1-8b",
            worker=worker,
            engine=plain_engine(mixed=False, chunk_tokens=8192, balance_steps=60),
        )
    )
    requests = Requests(prompts=[10] * (running + 1), outputs=[1000] * (running + 1))
    alone = told.mixed_s(
        new=10 * running,
        attention=running * told.prompt_attention_s(10, 0),
        heads=running,
        batch=0,
        context=0,
    )
    found = open_loop(
        told, requests, sent_s=[0.0] * running + [alone + 1e-9], slots=512, cache_tokens=MUCH
    )
    prompt = told.mixed_s(
        new=10, attention=told.prompt_attention_s(10, 0), heads=1, batch=0, context=0
    )
    begun = found.sent_s[-1] + found.ttft_s[-1] - prompt
    assert (begun - alone) / told.running_s(running, 11 + 0.5 * waited) == pytest.approx(
        1 + int(waited), abs=1.2
    )


@pytest.mark.parametrize(
    ("whole", "iterations"),
    [
        (True, [[(800, 0)], [(700, 0)], [(600, 0)]]),
        (False, [[(800, 0), (200, 0)], [(500, 200), (500, 0)], [(100, 500)]]),
    ],
)
def test_prompts_that_are_never_cut_wait_for_an_iteration_of_their_own(
    whole: bool, iterations: list[list[tuple[int, int]]]
) -> None:
    """Worked: of prompts of 800, 700 and 600 tokens no two fit into 1000; an engine that cuts them
    fills two iterations and a rest."""
    told = clock(
        prices(
            "llama3.1-8b", engine=plain_engine(mixed=False, chunk_tokens=1000, whole_prompts=whole)
        )
    )
    found = closed_loop(
        told,
        Requests(prompts=[800, 700, 600], outputs=[1] * 3),
        concurrency=3,
        slots=8,
        cache_tokens=MUCH,
    )
    seconds = [
        told.mixed_s(
            new=sum(n for n, _ in parts),
            attention=sum(told.prompt_attention_s(*p) for p in parts),
            heads=1,
            batch=0,
            context=0,
        )
        for parts in iterations
    ]
    assert found.ttft_s.tolist() == pytest.approx(list(itertools.accumulate(seconds)))


@pytest.mark.parametrize(("others", "waited"), [(0, 20), (8, 0)])
def test_prompts_wait_for_others_until_an_iteration_is_full(others: int, waited: int) -> None:
    """Worked: of 1000 tokens 90 % count as full. One prompt of 100 waits for 20 steps, nine of them
    begin at once."""
    told = clock(
        prices("llama3.1-8b", engine=plain_engine(mixed=False, chunk_tokens=1000, wait_steps=20))
    )
    alone = told.mixed_s(
        new=10, attention=told.prompt_attention_s(10, 0), heads=1, batch=0, context=0
    )
    step = told.running_s(1, 20)
    requests = Requests(prompts=[10] + [100] * (1 + others), outputs=[500] + [1] * (1 + others))
    found = open_loop(
        told,
        requests,
        sent_s=[0.0] + [alone + 0.5 * step] * (1 + others),
        slots=64,
        cache_tokens=MUCH,
    )
    new = 100 * (1 + others)
    prompts = told.mixed_s(
        new=new,
        attention=(1 + others) * told.prompt_attention_s(100, 0),
        heads=1 + others,
        batch=0,
        context=0,
    )
    assert (found.ttft_s[1] - prompts) / step == pytest.approx(waited + 0.5, abs=0.6)


def test_prompts_that_repeat_are_in_the_prefix_cache() -> None:
    """Worked: of 1000 tokens 992 are whole blocks of 16 before the last token, so that 8 are left
    to work on."""
    told = clock(prices("llama3.1-8b", engine=plain_engine()))
    requests = Requests(prompts=[1000] * 3, outputs=[2] * 3, distinct=1)
    found = closed_loop(told, requests, concurrency=1, slots=8, cache_tokens=MUCH)
    again = told.mixed_s(
        new=8, attention=told.prompt_attention_s(8, 992), heads=1, batch=0, context=0
    )
    assert found.ttft_s[1:].tolist() == pytest.approx([again, again])
    assert found.ttft_s[0] > 2 * again


def test_requests_far_apart_do_not_meet() -> None:
    requests = Requests(prompts=[500] * 3, outputs=[20] * 3)
    found = open_loop(TOLD, requests, sent_s=[0.0, 100.0, 200.0], slots=8, cache_tokens=MUCH)
    alone = closed_loop(
        TOLD, Requests(prompts=[500], outputs=[20]), concurrency=1, slots=8, cache_tokens=MUCH
    )
    assert found.e2e_s.tolist() == pytest.approx([alone.e2e_s[0]] * 3)


def test_a_full_cache_makes_requests_wait() -> None:
    requests = Requests(prompts=[1000] * 4, outputs=[100] * 4)
    told = clock(prices("llama3.1-8b", engine=plain_engine(cache_reserved=1.0)))
    narrow, wide = (
        closed_loop(told, requests, concurrency=4, slots=8, cache_tokens=room)
        for room in (1100, MUCH)
    )
    assert narrow.makespan_s > wide.makespan_s
    assert narrow.ttft_s.max() > wide.ttft_s.max()
    with pytest.raises(ConfigError, match="1100 tokens does not fit into a cache of 1099"):
        closed_loop(told, requests, concurrency=4, slots=8, cache_tokens=1099)


def test_a_known_prefix_is_not_computed_again() -> None:
    cold, warm = (
        closed_loop(
            TOLD,
            Requests(prompts=[4000], outputs=[5], cached=share),
            concurrency=1,
            slots=8,
            cache_tokens=MUCH,
        )
        for share in (0.0, 0.9)
    )
    outside = TOLD.prices.engine.request_s
    assert warm.ttft_s[0] - outside < 0.5 * (cold.ttft_s[0] - outside)


lengths = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 60)), min_size=1, max_size=12)


@settings(max_examples=40)
@given(lengths, st.integers(1, 5), st.integers(1, 4), st.sampled_from([True, False]))
def test_every_request_is_answered_in_order(
    asked: list[tuple[int, int]], clients: int, slots: int, mixed: bool
) -> None:
    told = _clock(mixed)
    requests = Requests(prompts=[p for p, _ in asked], outputs=[o for _, o in asked])
    found = closed_loop(told, requests, concurrency=clients, slots=slots, cache_tokens=10_000)
    assert (found.ttft_s > 0).all()
    assert (found.e2e_s >= found.ttft_s).all()
    assert (np.diff(found.sent_s) >= 0).all()
    assert found.output_tokens == sum(o for _, o in asked)
    open_ends = open_loop(
        told, requests, sent_s=list(found.sent_s), slots=slots, cache_tokens=10_000
    )
    assert open_ends.makespan_s == pytest.approx(found.makespan_s, rel=0.5)


_CLOCKS = {
    mixed: clock(prices("llama3.1-8b", engine=plain_engine(mixed=mixed, chunk_tokens=512)))
    for mixed in (True, False)
}


def _clock(mixed: bool) -> Clock:
    return _CLOCKS[mixed]


def test_more_clients_never_lower_throughput() -> None:
    requests = Requests(prompts=[700, 900, 1100] * 40, outputs=[50, 80, 110] * 40)
    rates = [
        closed_loop(TOLD, requests, concurrency=clients, slots=64, cache_tokens=MUCH).tokens_per_s
        for clients in (1, 4, 16, 64)
    ]
    assert all(later > earlier for earlier, later in itertools.pairwise(rates))


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 prompts and 1 answers"):
        Requests(prompts=[1, 2], outputs=[1])
    with pytest.raises(ConfigError, match="prefix hit share 1"):
        Requests(prompts=[1], outputs=[1], cached=1.0)
    with pytest.raises(ConfigError, match="concurrency=0"):
        closed_loop(
            TOLD, Requests(prompts=[1], outputs=[1]), concurrency=0, slots=1, cache_tokens=10
        )
    with pytest.raises(ConfigError, match="1 time for 2 requests"):
        open_loop(
            TOLD, Requests(prompts=[1, 2], outputs=[1, 1]), sent_s=[0.0], slots=1, cache_tokens=10
        )
