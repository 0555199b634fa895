from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.serving.engine import Worker, find_engine
from meshwright.serving.load import simulate_load
from meshwright.serving.request import ServingRequest
from meshwright.serving.simulate import Requests
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.catalogue import find_model

ASKED = ServingRequest(
    model=find_model("llama3.1-8b"),
    cluster=parse_cluster("h100:2"),
    engine=find_engine("vllm"),
    input_len=1000,
    output_len=100,
    weights=("bf16",),
    cache=("bf16",),
)
SENT = np.cumsum(np.random.default_rng(1).exponential(0.2, 200)).tolist()
LOAD = Requests(prompts=[1000] * 200, outputs=[100] * 200)


def test_copies_get_requests_in_turn() -> None:
    two = simulate_load(ASKED, worker=Worker(), requests=LOAD, sent_s=SENT, concurrency=None)
    one = simulate_load(
        replace(ASKED, cluster=parse_cluster("h100:1")),
        worker=Worker(),
        requests=LOAD,
        sent_s=SENT,
        concurrency=None,
    )
    assert (two.copies, two.chips, one.copies) == (2, 2, 1)
    assert two.figures["tpot"]["mean"] < one.figures["tpot"]["mean"]
    assert two.to_dict()["requests"] == 200


def test_percentiles_rise_and_the_mean_is_theirs() -> None:
    seen = simulate_load(ASKED, worker=Worker(tp=2), requests=LOAD, sent_s=SENT, concurrency=None)
    for figures in seen.figures.values():
        assert figures["p50"] <= figures["p90"] <= figures["p99"]
    assert seen.figures["ttft"]["mean"] == pytest.approx(float(seen.outcome.ttft_s.mean()))
    assert seen.to_dict()["tokens_per_s"] == pytest.approx(200 * 100 / seen.outcome.makespan_s)


def test_clients_that_wait_keep_their_number() -> None:
    seen = simulate_load(ASKED, worker=Worker(), requests=LOAD, sent_s=None, concurrency=8)
    under_way = seen.outcome.e2e_s.sum() / seen.outcome.makespan_s
    assert under_way == pytest.approx(8, rel=0.2)


def test_what_can_not_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="tp=4 needs 4 chips; there are 2"):
        simulate_load(ASKED, worker=Worker(tp=4), requests=LOAD, sent_s=SENT, concurrency=None)
    with pytest.raises(ConfigError, match="types of weights and cache"):
        simulate_load(
            replace(ASKED, weights=None),
            worker=Worker(),
            requests=LOAD,
            sent_s=SENT,
            concurrency=None,
        )
