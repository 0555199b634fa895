"""Whether serving's beliefs keep what they state, on made-up studies (benchmarks/serving_studies.py
has more of them, whose truth is the simulator's)."""

from __future__ import annotations

import math

import numpy as np

from meshwright.platforms.given import cluster_from_flag
from meshwright.runs.choose import Stop, Tried, choose
from meshwright.runs.forecasts import SLOW, Options
from meshwright.runs.loads.load import Lengths, closed_loop
from meshwright.runs.serving.candidates import serving_candidates, serving_options
from meshwright.runs.serving.trial import ServingTrial
from meshwright.serving.engine import find_engine
from meshwright.serving.request import ServingRequest
from meshwright.values.models.catalogue import named_model

STUDIES = 60


def test_a_stated_confidence_holds_on_made_up_studies() -> None:
    """Errors of each deployment and by axis, and noise from run to run, as large as published ones
    are. Of 60 studies a share that differs by 0.13 is 2.5 standard deviations off."""
    loads = (closed_loop(8, Lengths(input_len=1024, output_len=128), requests=16),)
    request = ServingRequest(
        model=named_model("llama3.1-8b"),
        cluster=cluster_from_flag("h100:8", gpus_per_node=None),
        engine=find_engine("vllm"),
        input_len=1024,
        output_len=128,
        modes=("aggregated",),
        weights=("bf16",),
        cache=("bf16",),
    )
    trial = ServingTrial(loads=loads, model_path="/models/it")
    members = serving_candidates(request, trial, pins={}).members
    options = serving_options(members, engine=request.engine, on_cores=False)
    assert len(options.step.hypotheses) == 8 and options.step.slow == SLOW
    assert math.isclose(sum(one.weight for one in options.step.hypotheses), 1.0)
    ends = [_study(options, np.random.default_rng(number)) for number in range(STUDIES)]
    stated, right = np.mean(ends, axis=0)
    assert stated > 0.8 and right > stated - 0.13


def _study(options: Options, chance: np.random.Generator) -> tuple[float, bool]:
    centred = options.axes - options.axes.mean(axis=0)
    trends = chance.normal(0.0, chance.uniform(0.0, 0.1), centred.shape[1])
    own = chance.normal(0.0, chance.uniform(0.02, 0.15), len(options))
    truth = options.step.mean + chance.normal(0.0, 0.3) + centred @ trends + own
    tried: dict[int, Tried] = {}
    while not isinstance(found := choose(options, tried), Stop):
        seen = truth[found.index] + chance.normal(0.0, 0.02)
        tried[found.index] = Tried(step_s=math.exp(seen), noise=0.02)
    best = min(tried, key=lambda index: tried[index].step_s or math.inf)
    return found.confidence, math.expm1(truth[best] - truth.min()) <= 0.02
