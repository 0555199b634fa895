"""Which of several deployments stands first, and the interval of every figure."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.serving.engine import Worker
from meshwright.serving.request import ServingRequest
from meshwright.serving.result import Part, ServingOption
from meshwright.serving.search import plan
from meshwright.serving.simple import (
    intervals_of_option,
    kind_of_option,
    mechanisms,
    tie_of_options,
    tie_width,
)
from meshwright.trust.intervals import find_serving_spread

ASKED = ServingRequest.of(model="llama3.1-8b", cluster="h100:8", input_len=1000, output_len=100)
TWO = {"prompts": Worker(tp=2), "answers": Worker(tp=2)}


def option(rate: float, **workers: Worker) -> ServingOption:
    parts = tuple(
        Part(role=role, chip="h100", worker=worker, count=1, memory_bytes=2**34, running=8.0)
        for role, worker in workers.items()
    )
    return ServingOption(
        mode="aggregated" if len(parts) == 1 else "disaggregated",
        weights="bf16",
        cache="bf16",
        parts=parts,
        concurrency=8,
        ttft_s=0.1,
        tpot_s=0.01,
        e2e_s=1.09,
        requests_per_s=rate,
        output_len=100,
        usd_per_hour=8.0,
    )


def test_one_pool_stands_before_two_within_the_error_and_not_beyond_it() -> None:
    one, two = option(1.0, both=Worker(tp=4)), option(1.1, **TWO)
    width, measured = tie_width(ASKED, two, one)
    assert not measured  # no published run of vLLM on two pools of a dense model
    found = tie_of_options(ASKED, [two, one])
    assert found is not None
    first, tie = found
    assert first is one
    assert (tie.without, tie.best_rank) == (("two pools",), 2)
    assert tie.gain_frac == pytest.approx(0.1)
    assert "#2 might be 10% better: two pools (--fastest)" in tie.words()
    beyond = option(1.01 * (1.0 + width), **TWO)
    assert tie_of_options(ASKED, [beyond, one]) is None


def test_tensor_parallelism_stands_before_a_pipeline() -> None:
    tensor, pipeline = option(1.0, both=Worker(tp=4)), option(1.02, both=Worker(pp=4))
    found = tie_of_options(ASKED, [pipeline, tensor])
    assert found is not None
    assert found[0] is tensor
    assert found[1].without == ("a pipeline",)
    assert tie_of_options(ASKED, [tensor, pipeline]) is None


def test_weights_of_another_type_are_another_question() -> None:
    narrow = replace(option(1.02, both=Worker(pp=4)), weights="fp8")
    assert tie_of_options(ASKED, [narrow, option(1.0, both=Worker(tp=4))]) is None


def test_the_width_of_measured_pools_is_that_of_sets_with_both() -> None:
    """SGLang ran mixtures of experts on one pool and on two; their sets' medians are apart."""
    asked = ServingRequest.of(
        model="deepseek-v3", cluster="h100:16", engine="sglang", input_len=1000, output_len=100
    )
    width, measured = tie_width(asked, option(1.0, **TWO), option(1.0, both=Worker(tp=4)))
    assert measured
    within, _ = tie_width(asked, option(1.0, both=Worker(tp=2)), option(1.0, both=Worker(tp=4)))
    assert 0 < within < width


def test_every_figure_has_an_interval_of_its_kind() -> None:
    one = option(1.0, both=Worker(tp=4))
    found = intervals_of_option(ASKED, one)
    figures = one.to_dict()
    figures["peak_memory_gib"] = 16.0
    for name, (low, high) in found.items():
        assert 0 < low < figures[name] < high
    rate = find_serving_spread(kind_of_option(ASKED, one), "throughput")
    assert rate.kind == "vllm one pool, dense, hopper"
    low, high = found["usd_per_million_tokens"]
    # By hand: 8 USD an hour for 100 tokens a second are 22.22 USD a million.
    assert low * rate.high == pytest.approx(22.22, rel=1e-3)
    assert high * rate.low == pytest.approx(22.22, rel=1e-3)


def test_the_fastest_is_first_where_it_is_asked_for() -> None:
    asked = replace(
        ServingRequest.of(model="llama3.1-70b", cluster="h100:8", input_len=4000, output_len=1000),
        weights=("fp8",),
        tpot_s=0.03,
        ttft_s=2.0,
    )
    simple, fastest = plan(asked), plan(replace(asked, fastest=True))
    assert fastest.tie is None
    assert simple.tie is not None
    assert mechanisms(simple.options[0]) < mechanisms(fastest.options[0])
    assert simple.options[1].tokens_per_s == fastest.options[0].tokens_per_s
    gained = fastest.options[0].tokens_per_s / simple.options[0].tokens_per_s
    assert math.isclose(gained, 1.0 + simple.tie.gain_frac)
    assert simple.tie.gain_frac <= simple.tie.width_frac
    assert all(one.intervals for one in (*simple.options, *simple.pareto))
