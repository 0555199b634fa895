"""Search deployments of a model for a load under limits of latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.serving.candidates import (
    Candidate,
    Rejected,
    candidate_of,
    candidates,
    transfer_s,
)
from meshwright.serving.engine import Cache, Weights, Worker
from meshwright.serving.load import under_arrivals
from meshwright.serving.options import of_one_pool, one_pool
from meshwright.serving.pools import Priced, Progress, two_pools
from meshwright.serving.request import ServingRequest, usual_weights
from meshwright.serving.result import (
    Part,
    ServingOption,
    ServingPlan,
    best_of_each,
    excess,
    most_requests,
    nearest_of,
    order,
    pareto_front,
)
from meshwright.serving.simple import intervals_of_option, tie_of_options
from meshwright.values.errors import ConfigError
from meshwright.values.models.said_size import model_notes

__all__ = ["plan", "predict"]

_MOST_LISTED = 50
_MOST_SIMULATED = 8


def plan(
    request: ServingRequest | None = None, /, *, progress: Progress | None = None, **fields: Any
) -> ServingPlan:
    """Return the deployments that answer a request, or its fields, best first.

    `plan(model="llama3-70b", cluster="h100:8", input_len=1000, output_len=500, ttft_s=0.5)`; the
    fields are those of ServingRequest. `progress` is told how many workers are done of how many.

    Every worker that holds the model is priced at every load from one request to as many as its
    cache holds; of disaggregated deployments all pairs of workers for prompts and answers with the
    same weights, as many of the first as the second need. Of each deployment the best load that
    keeps the limits is listed: most new tokens per second; with `objective="latency"` the least
    time of a request; with a target rate the fewest chips that carry it; with a rate of arrivals
    the shortest requests, of which the best few deployments are simulated, so that their times have
    percentiles.
    """
    if request is not None and fields:
        raise ConfigError(f"plan: give a request or fields ({', '.join(fields)}), not both")
    asked = request if request is not None else ServingRequest.of(**fields)
    return _search(asked, progress or _untold)


def _untold(done: int, of: int) -> None:
    """Tell nobody."""


def _search(request: ServingRequest, progress: Progress) -> ServingPlan:
    rejected: Rejected = Rejected()
    found = candidates(request, rejected)
    listed = _priced(request, found, progress)
    priced = listed.options
    able = [option for option in priced if option.requests_per_s >= (request.rate or 0.0)]
    fitting = [option for option in able if excess(request, option) <= 1.0]
    best = sorted(best_of_each(request, fitting), key=partial(order, request))
    if request.rate is not None and best:
        able = _simulated(request, best[:_MOST_SIMULATED], found)
        best = [option for option in able if excess(request, option) <= 1.0]
    simple = None if request.fastest else tie_of_options(request, best)
    if simple is not None:
        best = [simple[0], *(option for option in best if option is not simple[0])]
    nearest = {} if best else _nearest(request, able, priced, found)
    known = partial(_with_intervals, request)
    return ServingPlan(
        options=tuple(map(known, best[:_MOST_LISTED])),
        pareto=tuple(map(known, pareto_front(priced))),
        nearest={name: known(option) for name, option in nearest.items()},
        tie=None if simple is None else simple[1],
        rejected=dict(rejected),
        priced=listed.count,
        notes=_notes(request, found),
        chips=tuple(pool.node.chip.name for pool in request.cluster.pools),
    )


def _priced(
    request: ServingRequest, found: Sequence[Candidate], progress: Progress = _untold
) -> Priced:
    """What can be listed of every deployment at every load."""
    alone = tuple(option for option in one_pool(request, found) if option is not None)
    pairs = two_pools(request, found, progress)
    return Priced(options=(*alone, *pairs.options), count=len(alone) + pairs.count)


def _with_intervals(request: ServingRequest, option: ServingOption) -> ServingOption:
    return replace(option, intervals=intervals_of_option(request, option))


def _nearest(
    request: ServingRequest,
    able: Sequence[ServingOption],
    priced: Sequence[ServingOption],
    found: Sequence[Candidate],
) -> dict[str, ServingOption]:
    """The nearest to the limits of those that carry the rate; else what carries most."""
    if able:
        return nearest_of(request, able)
    if not priced and request.target_rate is not None:
        priced = _priced(replace(request, target_rate=None), found).options
    keeping = [option for option in priced if excess(request, option) <= 1.0]
    return {"requests_per_s": most_requests(keeping or priced)} if priced else {}


def predict(
    request: ServingRequest, *, worker: Worker, weights: Weights, cache: Cache, concurrency: int
) -> ServingOption:
    """Return what one worker does under `concurrency` requests; ConfigError if it can't."""
    one = candidate_of(request, request.cluster.pools[0], worker, weights, cache)
    most = one.most_running(request) * worker.attention_dp
    if concurrency > most:
        raise ConfigError(
            f"concurrency={concurrency}: the cache has room for {most} requests of this length at"
            " once"
        )
    found = one.steady(request, concurrency=max(1.0, concurrency / worker.attention_dp))
    return of_one_pool(request, "aggregated", one, 1, found, concurrency=concurrency)


def _simulated(
    request: ServingRequest, best: Sequence[ServingOption], found: Sequence[Candidate]
) -> list[ServingOption]:
    """The options under arrivals at random, the shortest requests first."""
    seen = []
    for option in best:
        parts = [_candidate(part, option, found) for part in option.parts]
        sent_s = transfer_s(request, parts[-1])
        seen.append(under_arrivals(request, option, parts=parts, transfer_s=sent_s))
    return sorted(seen, key=partial(order, request))


def _candidate(part: Part, option: ServingOption, found: Sequence[Candidate]) -> Candidate:
    wanted = (part.chip, part.worker, option.weights, option.cache)
    for one in found:
        prices = one.prices
        if (one.chip, prices.worker, prices.quantisation.name, prices.cache) == wanted:
            return one
    raise AssertionError(f"{wanted}: priced, and no candidate")


def _notes(request: ServingRequest, found: Sequence[Candidate]) -> tuple[str, ...]:
    notes = dict.fromkeys(one.prices.kernels.kin.note for one in found)
    notes |= dict.fromkeys(model_notes(request.model))
    notes |= {"" if request.weights else _weights_note(request): None}
    return tuple(note for note in notes if note)


def _weights_note(request: ServingRequest) -> str:
    """Say what was taken for the types of weights, and how others are chosen."""
    known = request.model.checkpoint
    chips = (pool.node.chip for pool in request.cluster.pools)
    taken = ", ".join(dict.fromkeys(usual_weights(request.model, chip) for chip in chips))
    why = "as the checkpoint has them" if known == taken else "the checkpoint's are not known"
    why = f"no chip's units take the checkpoint's {known}" if known not in (None, taken) else why
    return (
        f"weights: {taken}, {why}; --weights fp8 and the like try others, and narrower ones change"
        " answers"
    )
