from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.told import PROMPT_S, copy, trace

from meshwright.serving.fleet import PrefixCache, Served, run_fleet
from meshwright.serving.simulate import Requests, Run, open_loop, prefix_hit
from meshwright.serving.traffic import ROUTERS, Router, Trace, Window, windows_of


def served(load: Trace, *, copies: int, router: Router, cached_share: float = 0.0) -> Served:
    (window,) = windows_of(load, sample=1000)
    return run_fleet(copy(), load, window, copies=copies, router=router, cached_share=cached_share)


def test_two_copies_in_turn_by_hand() -> None:
    """Each prompt takes a second; the third waits for the first, the fourth for the second."""
    load = trace((0.0, 1000, 1), (0.1, 1000, 1), (0.2, 1000, 1), (0.3, 1000, 1))
    found = served(load, copies=2, router="round-robin")
    assert sorted(found.ttft_s.tolist()) == pytest.approx([1.0, 1.0, 1.8, 1.8])
    assert np.isnan(found.tpot_s).all()


def test_an_answer_takes_its_steps_by_hand() -> None:
    """The second request's prompt stops the first one's answer for a second: 1 + 2 x 0.1 + 1."""
    load = trace((0.0, 1000, 3), (1.05, 1000, 3))
    found = served(load, copies=1, router="round-robin")
    first, second = np.argsort(found.e2e_s)[::-1]
    # the first step ends at 1.1, where the prompt begins; it ends at 2.1
    assert found.ttft_s[second] == pytest.approx(1.05)
    assert found.e2e_s[first] == pytest.approx(2.2)
    assert found.tpot_s[first] == pytest.approx((2.2 - 1.0) / 2)
    assert found.e2e_s[second] == pytest.approx(1.25)


def test_the_least_loaded_copy_takes_the_next_by_hand() -> None:
    """A prompt of 3 s holds the first copy: in turn the third request waits for it until 3, where
    the least loaded router sends it to the second, which is free since 1.1."""
    load = trace((0.0, 3000, 1), (0.1, 1000, 1), (1.2, 1000, 1), (1.3, 1000, 1))
    turn = served(load, copies=2, router="round-robin")
    assert sorted(turn.ttft_s.tolist()) == pytest.approx([1.0, 1.0, 2.8, 3.0])
    least = served(load, copies=2, router="least-loaded")
    # both have one at 1.3, and the turn is the first copy's: it begins at 3 and ends at 4
    assert sorted(least.ttft_s.tolist()) == pytest.approx([1.0, 1.0, 2.7, 3.0])


def test_prefixes_are_kept_where_they_are_held_by_hand() -> None:
    """The third prompt repeats the first, the fourth its first block. A cache aware router sends
    both to the first copy; in turn the fourth goes to the second, which holds nothing of it."""
    load = trace(
        (0.0, 1024, 1),
        (2.0, 1024, 1),
        (4.0, 1024, 1),
        (6.0, 1024, 1),
        hashes=((1, 2), (8, 9), (1, 2), (1, 5)),
    )
    aware = served(load, copies=2, router="cache-aware")
    # the last token is always worked on, and with it its block of 16
    assert sorted(aware.ttft_s.tolist()) == pytest.approx([0.016, 0.512, 1.024, 1.024])
    assert aware.hit_frac == pytest.approx((1008 + 512) / 4096)
    turn = served(load, copies=2, router="round-robin")
    assert sorted(turn.ttft_s.tolist()) == pytest.approx([0.016, 1.024, 1.024, 1.024])
    assert turn.hit_frac == pytest.approx(1008 / 4096)


def test_a_cache_aware_router_leaves_a_full_copy_by_hand() -> None:
    """Six requests of one prefix at once: a held block saves what one more under way costs twice
    over, so that they spread once the first copy holds more than the prefix saves."""
    names = tuple((1, 10 + at) for at in range(6))
    load = trace(*((0.001 * at, 1024, 1) for at in range(6)), hashes=names)
    found = served(load, copies=2, router="cache-aware")
    assert found.hit_frac == pytest.approx(4 * 512 / (6 * 1024))


def test_a_share_of_every_prompt_is_held_where_no_blocks_are_named() -> None:
    found = served(trace((0.0, 1000, 1)), copies=1, router="round-robin", cached_share=0.25)
    assert found.ttft_s.tolist() == pytest.approx([0.75])
    assert found.hit_frac == pytest.approx(0.25)


def test_the_longest_unused_leaves_first_and_ends_before_beginnings() -> None:
    cache = PrefixCache()
    cache.use((1, 2, 3), room=4)
    cache.use((1, 7), room=4)
    assert cache.held((1, 2, 3)) == 3
    cache.use((1, 2), room=3)
    assert cache.held((1, 7)) == 2, "3 was not used the longest"
    assert cache.held((1, 2, 3)) == 2
    cache.use((20, 21, 22, 23), room=3)
    assert list(cache.blocks) == [22, 21, 20]
    cache.use((), room=0)
    assert cache.held((20,)) == 0


def test_a_small_cache_forgets_by_hand() -> None:
    """Room for three blocks: two prompts of two blocks in turns find one of them again."""
    one = copy(chunk_tokens=2048)
    memory = one.memory
    small = copy(chunk_tokens=2048, limit=memory.used(1600))
    names = ((1, 2), (3, 4), (1, 2), (3, 4))
    rows = [(5.0 * at, 1024, 1) for at in range(4)]
    load = trace(*rows, hashes=names)
    (window,) = windows_of(load, sample=1000)
    roomy = run_fleet(one, load, window, copies=1, router="round-robin")
    tight = run_fleet(small, load, window, copies=1, router="round-robin")
    assert roomy.hit_frac == pytest.approx(2 * 1008 / 4096)
    assert small.memory.cache_tokens // 512 == 3
    # of two blocks the end leaves for the other prompt's, and the beginning is found again
    assert tight.hit_frac == pytest.approx(2 * 512 / 4096)


def test_what_the_cache_drops_comes_back_from_the_host_by_hand() -> None:
    """The same, with host memory: the third prompt finds its first block on the chip and its second
    on the host, and so does the fourth. One block has 512 x 131,072 bytes and comes at the link's
    rate."""
    one = copy(chunk_tokens=2048)
    small = copy(chunk_tokens=2048, limit=one.memory.used(1600))
    names = ((1, 2), (3, 4), (1, 2), (3, 4))
    load = trace(*[(5.0 * at, 1024, 1) for at in range(4)], hashes=names)
    (window,) = windows_of(load, sample=1000)
    block_bytes = 512 * 131_072
    found = run_fleet(
        small,
        load,
        window,
        copies=1,
        router="round-robin",
        host_cache_bytes=8.5 * block_bytes,
    )
    assert found.hit_frac == pytest.approx(2 * 1008 / 4096)
    rate = one.pool.node.chip.host_bytes_per_s
    assert rate is not None
    again = 0.016 + block_bytes / rate
    assert found.ttft_s.tolist() == pytest.approx([1.024, 1.024, again, again])


def test_the_host_forgets_the_longest_unused() -> None:
    cache = PrefixCache(host_room=2)
    cache.use((1, 2, 3), room=1)
    assert (list(cache.blocks), list(cache.host)) == ([1], [3, 2])
    assert (cache.held((1, 2, 3)), cache.on_host((1, 2, 3))) == (3, 2)
    cache.use((9,), room=1)
    assert (list(cache.blocks), list(cache.host)) == ([9], [2, 1])
    cache.use((1,), room=1)
    assert (list(cache.blocks), list(cache.host)) == ([1], [2, 9])


LOADS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 3000), st.integers(1, 30)),
    min_size=1,
    max_size=25,
)


def _rows(drawn: list[tuple[int, int, int]]) -> list[tuple[float, int, int]]:
    return [(at / 10, prompt, output) for at, prompt, output in sorted(drawn)]


@settings(max_examples=60, deadline=None)
@given(drawn=LOADS)
def test_one_copy_sees_what_an_open_loop_sees(drawn: list[tuple[int, int, int]]) -> None:
    rows = _rows(drawn)
    start = rows[0][0]
    load = trace(*((at - start, prompt, output) for at, prompt, output in rows))
    one = copy()
    whole = open_loop(
        one.clock,
        Requests(prompts=[row[1] for row in rows], outputs=[row[2] for row in rows]),
        sent_s=load.sent_s.tolist(),
        slots=one.prices.engine.max_sequences,
        cache_tokens=one.memory.cache_tokens,
    )
    for router in ROUTERS[:2]:
        found = served(load, copies=1, router=router)
        assert found.ttft_s.tolist() == pytest.approx(whole.ttft_s.tolist())
        assert found.e2e_s.tolist() == pytest.approx(whole.e2e_s.tolist())


@settings(max_examples=60, deadline=None)
@given(drawn=LOADS, looks=st.lists(st.integers(0, 800), max_size=20))
def test_looking_at_a_copy_changes_nothing(
    drawn: list[tuple[int, int, int]], looks: list[int]
) -> None:
    """Property: a rank that is advanced whenever somebody looks ends its requests when one does
    that is left alone while it says that nothing happens."""
    one = copy()

    def run(lazy: bool) -> list[float]:
        rank = Run(one.clock, slots=4, cache_tokens=40_000, mean_output=1.0)
        events: list[tuple[float, int, int]] = [(at / 10, 0, 0) for at in looks]
        for when, prompt, output in sorted([*events, *_rows(drawn)]):
            if not prompt:
                if not lazy or rank.quiet_s < when:
                    rank.advance(when)
                continue
            rank.advance(when)
            rank.offer(when, prompt=prompt, output=output, hit=0)
        rank.finish()
        rank.look(rank.now)
        assert rank.under_way == rank.held == rank.prompts_held == rank.room_under_way == 0
        return rank.done

    assert run(lazy=True) == pytest.approx(run(lazy=False))


@settings(max_examples=40, deadline=None)
@given(drawn=LOADS, copies=st.integers(1, 4), router=st.sampled_from(ROUTERS))
def test_every_request_is_served_once(
    drawn: list[tuple[int, int, int]], copies: int, router: Router
) -> None:
    rows = _rows(drawn)
    start = rows[0][0]
    names = tuple(tuple(range(-(-prompt // 512))) for _, prompt, _ in rows)
    load = trace(*((at - start, p, o) for at, p, o in rows), hashes=names)
    found = served(load, copies=copies, router=router)
    assert len(found.e2e_s) == len(rows)
    assert (found.ttft_s > 0.99 * PROMPT_S).all(), "one token of a prompt is always worked on"
    assert (found.e2e_s >= found.ttft_s).all()
    assert 0.0 <= found.hit_frac < 1.0


@given(prompt=st.integers(1, 10_000), held=st.integers(0, 20_000))
def test_a_hit_is_whole_blocks_and_never_the_last_token(prompt: int, held: int) -> None:
    hit = prefix_hit(prompt, held)
    assert hit % 16 == 0
    assert hit <= min(prompt - 1, held)
    assert hit + 16 > min(prompt - 1, held)


def test_requests_before_a_window_are_sent_and_not_counted() -> None:
    load = trace((0.0, 1000, 1), (0.5, 1000, 1))
    window = Window(hour=0, seconds=1.0, requests=1, output_tokens=1, warm=0, first=1, last=2)
    found = run_fleet(copy(), load, window, copies=1, router="round-robin")
    assert found.ttft_s.tolist() == pytest.approx([1.5])
