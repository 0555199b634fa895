"""Whether the confidence that `serving tune` states holds: made-up studies, whose truth is the
serving simulator's with errors that no prediction knows.

    python benchmarks/serving_studies.py [--studies N] [--confidence C...] [--slow SHARE]

A study is a model and lengths of requests on eight chips. The truth of each deployment is what the
event simulator finds at the best of four loads, times errors: a trend by each axis, what is each
deployment's own. A run in twenty is slow. Each run is off by 1 to 5 %. Sizes of the errors
are drawn for each study. Prints how many runs a study took, what it said when it stopped, in how
many no other deployment was better by more than the tolerance in truth, and the mean regret.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.platforms.given import cluster_from_flag
from meshwright.runs.choose import Stop, Tried, choose
from meshwright.runs.forecasts import Options
from meshwright.runs.loads.load import Lengths, closed_loop
from meshwright.runs.serving.candidates import serving_candidates, serving_options
from meshwright.runs.serving.trial import ServingTrial
from meshwright.serving.candidates import Candidate, candidates
from meshwright.serving.engine import find_engine
from meshwright.serving.request import ServingRequest
from meshwright.serving.simulate import Requests
from meshwright.serving.simulate import closed_loop as simulated
from meshwright.values.models.catalogue import named_model

CLIENTS = (1, 8, 32, 64)
REQUESTS = 2
"""Of each client."""
QUESTIONS = (
    ("llama3.1-8b", "h100:8", 1024, 128),
    ("llama3.1-8b", "a100-80:8", 256, 256),
    ("llama3.1-70b", "h100:8", 1024, 128),
    ("qwen3-30b-a3b", "h100:8", 512, 256),
    ("mixtral-8x7b", "h200:8", 2048, 128),
)
TOLERANCE = 0.02
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Deployments that may be run, what is believed of them, and the simulator's costs."""

    name: str
    options: Options
    axes: Floats
    costs: Floats
    """Logarithms of chip-seconds of a token."""


def question(model: str, cluster: str, input_len: int, output_len: int) -> Question:
    """Return what `serving tune` would begin with, and the truth of the simulator."""
    lengths = Lengths(input_len=input_len, output_len=output_len)
    loads = tuple(closed_loop(n, lengths, requests=REQUESTS * n) for n in CLIENTS)
    request = ServingRequest(
        model=named_model(model),
        cluster=cluster_from_flag(cluster, gpus_per_node=None),
        engine=find_engine("vllm"),
        input_len=input_len,
        output_len=output_len,
        modes=("aggregated",),
        weights=("bf16", "fp8") if cluster[0] == "h" else ("bf16",),
        cache=("bf16",),
    )
    trial = ServingTrial(loads=loads, model_path="/models/it")
    members = serving_candidates(request, trial, pins={}).members
    priced = {
        (one.prices.worker, one.prices.quantisation.name): one
        for one in candidates(request, Counter())
    }
    options = serving_options(members, engine=request.engine, on_cores=False)
    costs = []
    for member in members:
        at = member.deployment
        costs.append(_cost(priced[at.worker, at.weights], request))
    return Question(
        name=f"{model} on {cluster}",
        options=options,
        axes=options.axes,
        costs=np.log(np.array(costs)),
    )


def _cost(one: Candidate, request: ServingRequest) -> float:
    """Chip-seconds of a token at the best load, by the simulator."""
    groups, chips = one.prices.worker.attention_dp, one.prices.worker.chips
    best = math.inf
    for clients in CLIENTS:
        each = max(1, clients // groups)
        asks = Requests(
            prompts=[request.input_len] * REQUESTS * each,
            outputs=[request.output_len] * REQUESTS * each,
        )
        found = simulated(
            one.clock,
            asks,
            concurrency=each,
            slots=request.engine.max_sequences,
            cache_tokens=int(one.memory.cache_tokens),
        )
        best = min(best, chips / (groups * found.tokens_per_s))
    return best


def made_up(base: Question, chance: np.random.Generator) -> Floats:
    """Return true costs that predictions know nothing of."""
    trend, own = chance.uniform(0.0, 0.1), chance.uniform(0.02, 0.15)
    by_axis = chance.normal(0.0, trend, base.axes.shape[1])
    centred = base.axes - base.axes.mean(axis=0)
    return np.asarray(
        base.costs
        + chance.normal(0.0, 0.3)
        + centred @ by_axis
        + chance.normal(0.0, own, len(base.costs))
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A study."""

    runs: int
    stated: float
    right: bool
    regret: float


def study(
    base: Question,
    truth: Floats,
    chance: np.random.Generator,
    *,
    confidence: float,
    slow_share: float,
) -> Ended:
    """Run the tuner's own choices on a made-up truth."""
    noise = chance.uniform(0.01, 0.05)
    tried: dict[int, Tried] = {}
    while True:
        found = choose(base.options, tried, tolerance=TOLERANCE, confidence=confidence)
        if isinstance(found, Stop):
            break
        slow = chance.exponential(0.6) if chance.random() < slow_share else 0.0
        seen = truth[found.index] + chance.normal(0.0, noise) + slow
        tried[found.index] = Tried(step_s=math.exp(seen), noise=noise)
    best = min(tried, key=lambda i: tried[i].step_s or math.inf)
    regret = math.expm1(truth[best] - truth.min())
    return Ended(
        runs=len(tried),
        stated=found.confidence,
        right=regret <= TOLERANCE,
        regret=regret,
    )


def studies(
    bases: Sequence[Question], *, count: int, confidence: float, slow_share: float
) -> Iterator[Ended]:
    """Yield so many studies, of each question in turn."""
    for number in range(count):
        chance = np.random.default_rng(number)
        base = bases[number % len(bases)]
        truth = made_up(base, chance)
        yield study(base, truth, chance, confidence=confidence, slow_share=slow_share)


def main() -> None:
    """Run the studies and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--confidence", type=float, nargs="+", default=[0.8, 0.9, 0.95])
    parser.add_argument("--slow", type=float, default=0.05, help="share of runs that are slow")
    options = parser.parse_args()
    bases = [question(*one) for one in QUESTIONS]
    for base in bases:
        print(f"{base.name}: {len(base.costs)} deployments")
    print("stop at  runs  stated  right  regret  all run")
    for confidence in options.confidence:
        ends = list(
            studies(bases, count=options.studies, confidence=confidence, slow_share=options.slow)
        )
        runs, stated, right, regret = (
            float(np.mean([getattr(end, name) for end in ends]))
            for name in ("runs", "stated", "right", "regret")
        )
        every = float(np.mean([end.stated == 1.0 for end in ends]))
        print(
            f"{confidence:>7.0%} {runs:>5.1f} {stated:>7.1%} {right:>6.1%} {regret:>7.2%}"
            f" {every:>8.0%}"
        )


if __name__ == "__main__":
    main()
