from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meshwright.serving.load import _served
from meshwright.serving.request import ServingRequest
from meshwright.serving.result import ServingOption
from meshwright.serving.search import plan
from meshwright.values.errors import ConfigError

LONE: dict[str, Any] = {
    "weights": ("fp8",),
    "cache": ("bf16",),
    "input_len": 1000,
    "output_len": 100,
}


def asked(rate: float, **changes: object) -> ServingRequest:
    fields: dict[str, Any] = {**LONE, **changes}
    return ServingRequest.of(model="llama3.1-8b", cluster="h100:2", rate=rate, **fields)


def best(rate: float, mode: str) -> ServingOption:
    return plan(asked(rate, modes=(mode,))).options[0]


def test_requests_wait_for_the_first_free_server() -> None:
    """Two servers of 1 s: the third of three at once waits a second; one that comes later waits for
    what is left of it."""
    assert _served(np.array([0.0, 0.0, 0.0, 0.5]), servers=2, times_s=[1.0]).tolist() == [
        1.0,
        1.0,
        2.0,
        2.0,
    ]
    assert _served(np.array([0.0, 5.0]), servers=1, times_s=[1.0]).tolist() == [1.0, 6.0]
    assert _served(np.array([0.0, 0.2, 0.3, 0.4]), servers=1, times_s=[1.0, 1.5]).tolist() == [
        1.0,
        2.5,
        2.5,
        3.5,
    ]


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_percentiles_rise_with_their_share_and_with_the_rate(mode: str) -> None:
    few, many = best(1.0, mode), best(12.0, mode)
    for option in (few, many):
        assert option.arrivals is not None
        for figures in option.arrivals.values():
            assert 0 < figures["p50"] <= figures["p90"] <= figures["p99"]
        assert option.ttft_s == option.arrivals["ttft"]["mean"]
    assert few.arrivals is not None and many.arrivals is not None
    assert many.arrivals["ttft"]["p99"] > few.arrivals["ttft"]["p99"]
    assert (few.requests_per_s, few.tokens_per_s) == (1.0, 100.0)


@pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
def test_a_lone_request_sees_what_the_steady_state_says(mode: str) -> None:
    alone = plan(
        ServingRequest.of(
            model="llama3.1-8b", cluster="h100:2", **LONE, modes=(mode,), objective="latency"
        )
    ).options[0]
    seen = best(0.01, mode)
    assert seen.e2e_s == pytest.approx(alone.e2e_s, rel=0.05)
    assert seen.ttft_s == pytest.approx(alone.ttft_s, rel=0.1)


def test_a_rate_that_nothing_carries_is_answered_with_the_most() -> None:
    found = plan(asked(1e5))
    assert not found.options
    assert list(found.nearest) == ["requests_per_s"]
    assert found.nearest["requests_per_s"].requests_per_s < 1e5


def test_limits_hold_for_what_was_simulated() -> None:
    free = plan(asked(12.0, modes=("aggregated",))).options
    limit = free[0].ttft_s * 1.0001
    found = plan(asked(12.0, modes=("aggregated",), ttft_s=limit))
    assert all(option.ttft_s <= limit for option in found.options)
    none = plan(asked(12.0, modes=("aggregated",), ttft_s=1e-3))
    assert not none.options and "ttft_s" in none.nearest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0.0}, "rate=0.0: expected a positive number"),
        ({"modes": ("static",)}, "leave the mode static out"),
        ({"concurrency": 4}, "give one of rate and concurrency"),
        ({"target_rate": 4.0}, "give one of rate and target_rate"),
    ],
)
def test_what_a_rate_excludes(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asked(**{"rate": 4.0, **changes})  # type: ignore[arg-type]
