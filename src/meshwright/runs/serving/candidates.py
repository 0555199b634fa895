"""Deployments that a study may run, the best predicted first, and what is believed of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import cast

import numpy as np
from numpy.typing import NDArray

from meshwright.runs.belief import Prior, Sizes, correlations, hypotheses_of
from meshwright.runs.candidates import MOST, nothing_runs
from meshwright.runs.forecasts import NEW_KIND, SLOW, SWITCH, Options
from meshwright.runs.loads.load import Load
from meshwright.runs.serving.record import (
    Deployment,
    PredictedPoint,
    ServedRecord,
    ServingPrediction,
)
from meshwright.runs.serving.trial import ServingTrial, refusal_of_deployment
from meshwright.serving.candidates import Candidate as Priced
from meshwright.serving.candidates import candidate_of, candidates
from meshwright.serving.engine import Cache, Engine, Quantisation, Worker, check_worker
from meshwright.serving.request import Objective, ServingRequest
from meshwright.serving.result import ServingOption
from meshwright.serving.search import predict
from meshwright.serving.settings import AS_IT_IS, Settings, octaves_of, priced_as, unpriced
from meshwright.serving.simulate import Requests
from meshwright.serving.simulate import closed_loop as simulated_clients
from meshwright.serving.simulate import open_loop as simulated_arrivals
from meshwright.serving.steady import most_running
from meshwright.values.errors import ConfigError

__all__ = [
    "Pins",
    "ServingCandidate",
    "ServingCandidates",
    "named_candidates",
    "serving_candidates",
    "serving_options",
]

SPREAD = 0.35
"""Standard deviation of ln(measured / predicted) of a deployment's throughput or request time, of
published runs: half of TPOT's errors are above 11 % of dense models and 18 % of those with experts,
their means 17 % to 24 % (docs/serving_accuracy.md); a normal distribution with a mean size of 0.24
has a width of 0.30, to which TTFT's errors add."""
OWN = 0.15
"""Of it, what like deployments do not share: ranks of configurations of one model and engine are
mostly right there (Spearman 0.8 to 0.95)."""
TRENDS, ALIKE, OWNS = (0.0, 0.1), (0.05, 0.15), (0.03, OWN)
"""Sizes of the hypotheses' parts: small, or up to what OWN says of all that deployments do not
share; runs tell which. No set of published runs is fitted to: there are too few of one model,
engine and load."""
FILL_SPREAD = 0.1
"""The same of memory needed: engines fill what they are told to, and take fewer requests at once
where it is short."""
_BISECTIONS = 20
Floats = NDArray[np.float64]
Pins = Mapping[str, tuple[int, ...]]
"""Sizes that an axis may have: tp, pp, ep, attention_dp."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingCandidate:
    """One deployment, before any run."""

    deployment: Deployment
    predicted: ServingPrediction
    trial: ServingTrial

    @property
    def run_id(self) -> str:
        """The deployment's name."""
        return self.deployment.run_id

    def planned(self, *, number: int, because: str) -> ServedRecord:
        """Return the record of its run."""
        return ServedRecord(
            run_id=self.run_id,
            number=number,
            deployment=self.deployment,
            predicted=self.predicted,
            objective=self.trial.objective,
            limits=self.trial.limits,
            chosen_because=because,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingCandidates:
    """What may be run, the best predicted first, and what was left out by reason."""

    members: tuple[ServingCandidate, ...]
    left_out: Mapping[str, int]
    refused: Mapping[Worker, str] = field(default_factory=dict)
    """Of workers that were named one by one: why they can't be run."""


def named_candidates(
    request: ServingRequest, trial: ServingTrial, *, workers: Sequence[Worker]
) -> ServingCandidates:
    """Predict exactly these workers under the trial's loads, best first; ConfigError for none."""
    members: list[ServingCandidate] = []
    refused: dict[Worker, str] = {}
    for worker in workers:
        found = _named(request, trial, worker)
        if isinstance(found, str):
            refused[worker] = found
        else:
            members.append(found)
    return _found(request, members, Counter(refused.values()), refused)


def _named(request: ServingRequest, trial: ServingTrial, worker: Worker) -> ServingCandidate | str:
    assert request.weights, "their types are named with them"
    pool, weights = request.cluster.pools[0], request.weights[0]
    try:
        check_worker(worker, request.model)
        if worker.chips > pool.num_chips:
            return f"{worker.name}: {worker.chips} chips, and there are {pool.num_chips}"
        cache = request.cache[0] if request.cache else cast("Cache", weights)
        priced = candidate_of(request, pool, worker, weights, cache)
    except ConfigError as error:
        return str(error)
    return _member(request, trial, priced, pins={})


def _member(
    request: ServingRequest,
    trial: ServingTrial,
    priced: Priced,
    *,
    pins: Pins,
    settings: Settings = AS_IT_IS,
) -> ServingCandidate | str:
    """A deployment with its prediction, or why it can't be run."""
    deployment = replace(_deployment(priced), settings=settings)
    reason = _pinned_out(deployment, pins) or _beyond_node(priced)
    reason = reason or refusal_of_deployment(trial, request, deployment)
    return reason or ServingCandidate(
        deployment=deployment, predicted=_predicted(request, trial, priced), trial=trial
    )


def serving_candidates(
    request: ServingRequest,
    trial: ServingTrial,
    *,
    pins: Pins,
    settings: Sequence[Settings] = (AS_IT_IS,),
) -> ServingCandidates:
    """Search the deployments of a request under each of some settings and predict them under the
    trial's loads; ConfigError where none can be run."""
    left_out: Counter[str] = Counter()
    members: list[ServingCandidate] = []
    for told in settings:
        asked = priced_as(request, told)
        for priced in candidates(asked, left_out):
            found = _member(asked, trial, priced, pins=pins, settings=told)
            if isinstance(found, str):
                left_out[found] += 1
            else:
                members.append(found)
    return _found(request, members, left_out, {})


def _found(
    request: ServingRequest,
    members: Sequence[ServingCandidate],
    left_out: Counter[str],
    refused: Mapping[Worker, str],
) -> ServingCandidates:
    if not members:
        raise nothing_runs(f"no deployment of {request.model.name} can be run", left_out)
    ordered = sorted(
        members, key=lambda member: (not member.predicted.keeps, member.predicted.cost_s)
    )
    return ServingCandidates(
        members=tuple(ordered[:MOST]), left_out=dict(left_out), refused=dict(refused)
    )


def _deployment(priced: Priced) -> Deployment:
    return Deployment(
        worker=priced.prices.worker,
        weights=priced.prices.quantisation.name,
        cache=priced.prices.cache,
    )


def _pinned_out(deployment: Deployment, pins: Pins) -> str | None:
    """The first axis whose size is none of those that were asked for."""
    for axis, allowed in pins.items():
        if (size := getattr(deployment.worker, axis)) not in allowed:
            return f"{axis}={size}: not asked for"
    return None


def _beyond_node(priced: Priced) -> str | None:
    chips, node = priced.prices.worker.chips, priced.pool.node.chips_per_node
    if chips > node:
        return f"{chips} chips on nodes of {node}: a run is one engine on one node"
    return None


def _predicted(request: ServingRequest, trial: ServingTrial, priced: Priced) -> ServingPrediction:
    most = most_running(
        priced.clock,
        input_len=request.input_len,
        output_len=request.output_len,
        cache_tokens=priced.memory.cache_tokens,
    )
    most *= priced.prices.worker.attention_dp
    points = tuple(_point(request, priced, load, most) for load in trial.loads if most)
    if trial.limits.of_p99 and points:
        loads = zip(points, trial.loads, strict=True)
        points = tuple(_with_slowest(point, priced, load) for point, load in loads)
    kept = [point for point in points if trial.limits.kept(point.times)]
    chips = priced.prices.worker.chips
    costs = (_cost_s(point, chips, trial.objective) for point in kept or points)
    each = request.input_len + request.output_len + priced.memory.state_tokens
    tokens = min(most, trial.most_sequences) * each
    held = tokens / priced.prices.worker.attention_dp
    return ServingPrediction(
        points=points,
        cost_s=min(costs, default=math.inf),
        keeps=bool(kept),
        memory_bytes=priced.memory.used(min(held, priced.memory.cache_tokens)),
        limit_bytes=priced.memory.limit,
    )


def _cost_s(point: PredictedPoint, chips: int, objective: Objective) -> float:
    return point.e2e_s if objective == "latency" else chips / point.tokens_per_s


def _point(request: ServingRequest, priced: Priced, load: Load, most: int) -> PredictedPoint:
    """Price a load: clients as many requests under way, or as many as the cache holds; a rate as
    what carries it."""
    if load.clients is not None:
        clients = min(load.clients, most)
        waited, found = load.clients / clients, _steady(request, priced, clients)
        per_s = found.requests_per_s
    else:
        rate = _rate(load)
        waited, found = 1.0, _steady(request, priced, _clients_at(request, priced, rate, most))
        per_s = min(rate, found.requests_per_s)
    e2e_s = found.e2e_s * waited
    return PredictedPoint(
        load=load.name,
        # What the cache has no room for waits before its first token.
        ttft_s=found.ttft_s + e2e_s - found.e2e_s,
        tpot_s=found.tpot_s,
        e2e_s=e2e_s,
        tokens_per_s=per_s * request.output_len,
    )


def _with_slowest(point: PredictedPoint, priced: Priced, load: Load) -> PredictedPoint:
    """Add what the slowest of a hundred requests takes, of one attention rank with its share of the
    load.

    Formula:  the 99th percentile over the load's requests, as the simulator runs them
    Units:    seconds.
    Source:   `serving.simulate`
    """
    ranks = priced.prices.worker.attention_dp
    asks = load.asks[::ranks]
    requests = Requests(
        prompts=[ask.input_len for ask in asks], outputs=[ask.output_len for ask in asks]
    )
    room = {
        "slots": priced.prices.engine.max_sequences,
        "cache_tokens": int(priced.memory.cache_tokens),
    }
    if load.clients is not None:
        each = -(-load.clients // ranks)
        found = simulated_clients(priced.clock, requests, concurrency=each, **room)
    else:
        sent_s = [ask.sent_s or 0.0 for ask in asks]
        found = simulated_arrivals(priced.clock, requests, sent_s=sent_s, **room)
    ttft_s, tpot_s, e2e_s = map(_slowest_of, (found.ttft_s, found.tpot_s, found.e2e_s))
    return replace(point, ttft_p99_s=ttft_s, tpot_p99_s=tpot_s, e2e_p99_s=e2e_s)


def _slowest_of(times: Floats) -> float | None:
    known = times[~np.isnan(times)]
    return float(np.percentile(known, 99)) if len(known) else None


def _rate(load: Load) -> float:
    """Requests a second, of a trace over its length."""
    if load.kind == "rate":
        return float(load.value or 0.0)
    last = max(ask.sent_s or 0.0 for ask in load.asks)
    return len(load.asks) / last if last else math.inf


def _clients_at(request: ServingRequest, priced: Priced, rate: float, most: int) -> int:
    """The fewest requests under way that carry a rate, by bisection; all that fit where none do."""
    low, high = 1, most
    for _ in range(_BISECTIONS):
        if low >= high:
            break
        middle = (low + high) // 2
        found = _steady(request, priced, middle)
        low, high = (low, middle) if found.requests_per_s >= rate else (middle + 1, high)
    return low


def _steady(request: ServingRequest, priced: Priced, clients: int) -> ServingOption:
    one = _deployment(priced)
    return predict(
        request, worker=one.worker, weights=one.weights, cache=one.cache, concurrency=clients
    )


def serving_options(
    members: Sequence[ServingCandidate], *, engine: Engine, on_cores: bool
) -> Options:
    """Return what is believed of deployments before any run.

    Formula:  ln cost of each has the predicted mean; how far off it is, is a mixture of hypotheses
              (`hypotheses_of`) as in tune: SPREAD shared by all, trends by axis, what is shared the
              more the fewer doublings of tp, pp, ep, attention_dp, bytes of a weight and sizes of
              the engine lie between two, and each one's own; and SLOW runs. Settings that no price
              follows lie NEW_KIND times as far apart
    Source:   SPREAD, TRENDS, ALIKE, OWNS, FILL_SPREAD; on processors NEW_KIND times as wide
    """
    wide = NEW_KIND if on_cores else 1.0
    axes = _axes([member.deployment for member in members], engine)
    predicted = [member.predicted for member in members]
    # One that is not predicted to keep the limits is behind all that are: e times the worst of
    # them.
    costs, behind = np.array([(one.cost_s, float(not one.keeps)) for one in predicted]).T
    worst = costs[np.isfinite(costs)].max(initial=1.0)
    logs = np.log(np.where(np.isfinite(costs), costs, worst)) + behind
    fills = np.log([one.memory_bytes / one.limit_bytes for one in predicted])
    step = _prior(logs, axes, wide * SPREAD, wide * OWN)
    hypotheses = hypotheses_of(
        _sizes(wide),
        slopes=np.zeros((len(logs), 1)),
        widths=np.zeros(1),
        axes=axes,
        common=wide * SPREAD,
    )
    return Options(
        step=replace(step, hypotheses=hypotheses, slow=SLOW),
        fill=_prior(fills, axes, FILL_SPREAD, FILL_SPREAD / 2),
        axes=axes,
    )


def _sizes(wide: float) -> tuple[Sizes, ...]:
    """Every combination of the parts' sizes, all alike before the first run."""
    parts = list(product(TRENDS, ALIKE, OWNS))
    return tuple(
        Sizes(
            factors=0.0,
            trend=wide * trend,
            alike=wide * alike,
            octaves=1.0,
            own=wide * own,
            weight=1.0 / len(parts),
        )
        for trend, alike, own in parts
    )


def _prior(mean: np.ndarray, axes: np.ndarray, spread: float, own: float) -> Prior:
    return correlations(
        slopes=np.zeros((len(mean), 1)),
        widths=np.zeros(1),
        axes=axes,
        noise=own * math.sqrt(2.0),
        mean=mean,
        spread=np.full(len(mean), spread),
    )


def _axes(deployments: Sequence[Deployment], engine: Engine) -> Floats:
    """What tells deployments apart, (N, A): doublings of each size, and a column for each value of
    a switch."""
    sizes = [[*_sizes_of(one), *octaves_of(engine, one.settings)] for one in deployments]
    switches = [
        (name, value)
        for name in ("graphs", "chunked_prefill", "prefix_caching")
        for value in sorted({str(getattr(one.settings, name)) for one in deployments})
    ]
    flags = [
        [_switch(one.settings, name, value) for name, value in switches] for one in deployments
    ]
    return np.concatenate((np.array(sizes), np.array(flags)), axis=1)


def _sizes_of(deployment: Deployment) -> list[float]:
    at, width = deployment.worker, Quantisation.bytes_of(deployment.weights)
    sizes = map(math.log2, (at.tp, at.pp, at.ep, at.attention_dp, width))
    return [*sizes, float(deployment.cache == deployment.weights)]


def _switch(settings: Settings, name: str, value: str) -> float:
    apart = SWITCH * (NEW_KIND if name in unpriced(settings) else 1.0)
    return apart * float(str(getattr(settings, name)) == value)
