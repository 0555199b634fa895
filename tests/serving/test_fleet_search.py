from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.told import copy, trace

from meshwright.serving import fleet_search
from meshwright.serving.engine import Worker
from meshwright.serving.fleet import Served
from meshwright.serving.fleet_result import pooled
from meshwright.serving.fleet_search import plan_fleet
from meshwright.serving.request import ServingRequest
from meshwright.serving.traffic import Trace, TrafficAsked, windows_of
from meshwright.values.errors import ConfigError

ASKED = ServingRequest.of(
    model="llama3.1-8b", cluster="h100:8", input_len=1, output_len=1, usd_per_chip_hour=3.0
)


def known_copies(monkeypatch: pytest.MonkeyPatch, *, chips: int = 8) -> None:
    """Let one deployment stand, whose copies take a second for a prompt."""
    one = copy(chips=chips)
    monkeypatch.setattr(fleet_search, "_ranked", lambda *_: [(one, 1.0)])


def every(gap_s: float, *, until_s: float, from_s: float = 0.0) -> list[tuple[float, int, int]]:
    times = np.arange(from_s, until_s, gap_s).tolist()
    return [(at, 1000, 1) for at in times]


def test_the_smallest_fleet_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of a second come every 0.4 s: 2.5 copies' work, so that three serve each at once and
    two fall behind. 3 chips at 3 USD an hour are 216 USD a day; the trace has 100 new tokens in
    39.6 s."""
    known_copies(monkeypatch)
    load = trace(*every(0.4, until_s=39.9))
    assert load.size == 100
    found = plan_fleet(ASKED, trace=load, asked=TrafficAsked(ttft_p99_s=1.5))
    assert (found.copies, found.chips, found.mean_copies) == (3, 3, 3.0)
    assert found.seen is not None
    assert found.seen.figures["ttft"] == pytest.approx(dict.fromkeys(STATISTICS, 1.0))
    assert found.usd_per_day(3) == pytest.approx(216.0)
    tokens_a_day = 100 * 86400 / 39.6
    assert found.usd_per_million_tokens(3) == pytest.approx(216.0 / tokens_a_day * 1e6)


STATISTICS = ("mean", "p50", "p95", "p99")


def test_copies_by_the_hour_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of one prompt every 1.25 s, one of an hour every 0.4 s, an hour of none, and another
    of the first kind."""
    known_copies(monkeypatch)
    rows = [
        *every(1.25, until_s=3600),
        *every(0.4, from_s=3600.5, until_s=7200),
        *every(1.25, from_s=10800.5, until_s=14400),
    ]
    found = plan_fleet(ASKED, trace=trace(*rows), asked=TrafficAsked(ttft_p99_s=1.5))
    assert [(hour.window.hour, hour.copies) for hour in found.hours] == [(0, 1), (1, 3), (3, 1)]
    assert found.copies == 3
    # three hours of one copy, which stays in the hour without a request, and one of three
    assert found.mean_copies == pytest.approx(6 / 4, rel=1e-3)


def test_limits_of_one_in_a_hundred_and_of_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 prompts, each alone but the last two at one moment, one waits: p99 on one copy is
    still a second, and 99 % are good, but not 99.5 %."""
    known_copies(monkeypatch)
    load = trace(*every(2.0, until_s=197.0), (196.0, 1000, 1))
    assert load.size == 100
    one = plan_fleet(ASKED, trace=load, asked=TrafficAsked(ttft_p99_s=1.5))
    assert one.copies == 1
    single = replace(ASKED, ttft_s=1.5)
    assert plan_fleet(single, trace=load, asked=TrafficAsked(goodput=0.99)).copies == 1
    most = plan_fleet(single, trace=load, asked=TrafficAsked(goodput=0.995))
    assert most.copies == 2
    assert most.seen is not None and most.seen.good_frac == 1.0


def test_what_the_chips_cannot_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    known_copies(monkeypatch, chips=2)
    found = plan_fleet(
        ASKED, trace=trace(*every(0.4, until_s=39.9)), asked=TrafficAsked(ttft_p99_s=1.5)
    )
    assert (found.hours, found.copies, found.most_copies) == ((), 0, 2)
    assert found.seen is not None
    # two copies serve 5 prompts in the time of 2.5: the 100th is sent at 39.6 and ends at 50.4
    assert found.seen.figures["ttft"]["p99"] == pytest.approx(50.0 - 39.2, abs=0.5)
    assert found.seen.worst == "ttft p99"


def test_a_real_deployment_is_found_and_one_may_be_named() -> None:
    rows = [(0.5 * at, 700 + at, 40) for at in range(120)]
    asked = TrafficAsked(ttft_p95_s=1.0, tpot_p50_s=0.05)
    found = plan_fleet(ASKED, trace=trace(*rows), asked=asked)
    assert found.deployment is not None
    assert (found.deployment.worker, found.copies) == (Worker(tp=1), 1)
    named = plan_fleet(ASKED, trace=trace(*rows), asked=asked, worker=Worker(tp=4))
    assert named.deployment is not None
    assert (named.deployment.worker, named.chips) == (Worker(tp=4), 4)


@pytest.mark.parametrize(
    ("fields", "asked", "says"),
    [
        ({}, TrafficAsked(), "needs a limit on how long requests wait"),
        ({"tpot_s": 0.05}, TrafficAsked(), "needs a limit on how long requests wait"),
        ({"ttft_s": 1.0}, TrafficAsked(router="cache-aware"), "does not name the blocks"),
        ({}, TrafficAsked(goodput=0.9, ttft_p99_s=1.0), "give what makes a request good"),
    ],
)
def test_questions_without_an_answer(
    fields: dict[str, float], asked: TrafficAsked, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_fleet(replace(ASKED, **fields), trace=trace((0.0, 10, 10)), asked=asked)  # type: ignore[arg-type]


def test_a_prompt_beyond_the_context_is_counted_and_refused() -> None:
    load = trace((0.0, 10, 10), (1.0, 131_000, 1000))
    with pytest.raises(ConfigError, match=r"1 of 2 requests are beyond the 131,072 tokens"):
        plan_fleet(ASKED, trace=load, asked=TrafficAsked(ttft_p99_s=1.0))


@pytest.mark.parametrize(
    "fields", [{"goodput": 0.0}, {"goodput": 1.1}, {"sample": 10}, {"ttft_p99_s": -1.0}]
)
def test_limits_that_are_none(fields: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        TrafficAsked(**fields)  # type: ignore[arg-type]


@given(need=st.integers(1, 300), guess=st.integers(-5, 400), most=st.integers(0, 300))
def test_the_least_number_is_found_from_any_guess(need: int, guess: int, most: int) -> None:
    asked: list[int] = []

    def keeps(copies: int) -> bool:
        asked.append(copies)
        return copies >= need

    found = fleet_search._least(keeps, guess, most)
    assert found == (need if need <= most else None)
    assert len(asked) == len(set(asked)) <= 40
    assert all(1 <= copies <= most for copies in asked)


def test_windows_weigh_by_what_they_stand_for() -> None:
    """Worked: 2 requests of 1 s stand for 98, and 2 of 9 s for 2: the mean is (98 + 18) / 100."""

    def seen(seconds: float) -> Served:
        times = np.full(2, seconds)
        return Served(ttft_s=times, tpot_s=times, e2e_s=times, hit_frac=0.0)

    asked = TrafficAsked(ttft_p99_s=3.0)
    found = pooled(ASKED, asked, [(seen(1.0), 49.0), (seen(9.0), 1.0)])
    assert found.figures["ttft"] == pytest.approx(
        {"mean": 1.16, "p50": 1.0, "p95": 1.0, "p99": 9.0}
    )
    assert found.excess == pytest.approx(3.0)
    assert found.worst == "ttft p99"


def test_the_busiest_stretch_of_each_hour() -> None:
    """Of two hours with 1000 requests each, a sample of 400 takes 200 of each: those that come ten
    times as fast."""
    slow, fast = np.full(800, 4.0), np.full(200, 0.4)
    hour = np.cumsum(np.concatenate([slow[:400], fast, slow[400:]]))
    sent = np.concatenate([hour, 3600.0 + hour])
    ones = np.ones(2000, dtype=np.int64)
    load = Trace(name="two hours", sent_s=sent - sent[0], prompts=ones, outputs=ones)
    first, second = windows_of(load, sample=400)
    assert (first.counted, second.counted) == (200, 200)
    assert abs(first.first - 400) <= 1
    assert abs(second.first - 1400) <= 1
    assert (first.first - first.warm, first.requests) == (20, 1000)
