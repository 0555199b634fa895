"""A simulated load on all copies of a deployment, and what requests saw of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from meshwright.serving.engine import Worker
from meshwright.serving.kernels import Floats
from meshwright.serving.request import ServingRequest
from meshwright.serving.result import ServingOption
from meshwright.serving.simulate import Outcome, Requests, closed_loop, open_loop
from meshwright.serving.space import Candidate, candidate_of
from meshwright.serving.steady import cut, prompts_s, prompts_together
from meshwright.values.errors import ConfigError

__all__ = ["Seen", "simulate_load", "summaries", "together", "under_arrivals"]

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the requests of a load saw."""

    outcome: Outcome
    copies: int
    chips: int

    @property
    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """Mean and percentiles of TTFT, TPOT (but of one token) and end-to-end time, in seconds."""
        return summaries(self.outcome)

    def to_dict(self) -> dict[str, Any]:
        rate = self.outcome.tokens_per_s
        return {
            "requests": len(self.outcome.sent_s),
            "copies": self.copies,
            "chips": self.chips,
            "makespan_s": self.outcome.makespan_s,
            "tokens_per_s": rate,
            "tokens_per_s_per_gpu": rate / self.chips,
            **{f"{name}_s": dict(figures) for name, figures in self.figures.items()},
        }


def summaries(outcome: Outcome) -> dict[str, dict[str, float]]:
    """Return mean and percentiles of TTFT, TPOT and end-to-end time, in seconds; without TPOT where
    all requests have one token."""
    columns = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s, "e2e": outcome.e2e_s}
    return {
        name: _summary(column[np.isfinite(column)])
        for name, column in columns.items()
        if np.isfinite(column).any()
    }


def _summary(values: Floats) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        **{name: float(np.quantile(values, share)) for name, share in _QUANTILES.items()},
    }


def simulate_load(
    request: ServingRequest,
    *,
    worker: Worker,
    requests: Requests,
    sent_s: Sequence[float] | None,
    concurrency: int | None,
) -> Seen:
    """Send requests to as many copies of a worker as the chips hold, in turn, and to their
    attention ranks in turn.

    With `sent_s` at those times, else by `concurrency` clients in all that wait for their answers.
    The types of weights and cache are the request's first.
    """
    if len(request.cluster.pools) > 1:
        raise ConfigError(
            f"cluster {request.cluster.name}: a load is simulated on one kind of chip; name one of"
            " them"
        )
    pool = request.cluster.pools[0]
    if pool.num_chips < worker.chips:
        raise ConfigError(f"{worker.name} needs {worker.chips} chips; there are {pool.num_chips}")
    if not request.weights or not request.cache:
        raise ConfigError("a simulated load needs the types of weights and cache")
    one = candidate_of(request, pool, worker, request.weights[0], request.cache[0])
    copies = pool.num_chips // worker.chips
    count = len(requests.prompts)
    ways = min(copies * worker.attention_dp, count, concurrency or count)
    outcomes = []
    for way in range(ways):
        prompts, outputs = requests.prompts[way::ways], requests.outputs[way::ways]
        part = Requests(prompts=prompts, outputs=outputs, cached=request.cached_share)
        limits = {"slots": request.engine.max_sequences, "cache_tokens": one.memory.cache_tokens}
        if sent_s is not None:
            outcomes.append(open_loop(one.clock, part, sent_s=sent_s[way::ways], **limits))
        else:
            clients = (concurrency or 1) // ways + (way < (concurrency or 1) % ways)
            outcomes.append(closed_loop(one.clock, part, concurrency=max(1, clients), **limits))
    return Seen(outcome=together(outcomes), copies=copies, chips=copies * worker.chips)


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Return what the requests of several ranks saw, one rank's after the other's."""
    columns = {
        name: np.concatenate([getattr(one, name) for one in outcomes])
        for name in ("sent_s", "ttft_s", "tpot_s", "e2e_s")
    }
    ends = max(float((one.sent_s + one.e2e_s).max()) for one in outcomes)
    return Outcome(
        **columns,
        output_tokens=sum(one.output_tokens for one in outcomes),
        makespan_s=ends - float(columns["sent_s"].min()),
    )


_SEED = 0
"""Of the arrivals, the same on every deployment, so that they are compared under one load."""
_LEAST, _MOST, _ROUNDS = 1000, 6000, 20
"""Requests to send: so many times those under way at once, within these bounds."""


def under_arrivals(
    request: ServingRequest, option: ServingOption, *, parts: Sequence[Candidate], transfer_s: float
) -> ServingOption:
    """Return the option with what its requests see under Poisson arrivals at the request's rate.

    Formula:  event simulation; requests go to copies, and to their attention ranks, in turn. Of two
              pools prompts wait for the first rank for prompts that is free, which takes as many as
              an iteration has room for; their cache is sent, and all but the first token come from
              a rank for answers, which finds the prompt cached
    Units:    seconds; `parts` are the candidates of the option's parts in their order.
    Source:   `open_loop`; first come, first served before the prompts.
    Valid:    requests of one length, from an empty deployment on.
    Checked:  tests/serving/test_arrivals.py
    """
    assert request.rate is not None
    running = request.rate * option.e2e_s
    count = int(min(max(_LEAST, _ROUNDS * running), _MOST))
    sent = np.cumsum(np.random.default_rng(_SEED).exponential(1.0 / request.rate, count))
    if len(parts) == 1:
        outcome = _one_pool(request, option, parts[0], sent)
    else:
        outcome = _two_pools(request, option, parts, sent, transfer_s)
    figures = summaries(outcome)
    return replace(
        option,
        concurrency=max(1, round(request.rate * figures["e2e"]["mean"])),
        ttft_s=figures["ttft"]["mean"],
        tpot_s=figures["tpot"]["mean"] if "tpot" in figures else 0.0,
        e2e_s=figures["e2e"]["mean"],
        requests_per_s=request.rate,
        arrivals=figures,
    )


def _one_pool(
    request: ServingRequest, option: ServingOption, one: Candidate, sent: Floats
) -> Outcome:
    ways = min(option.parts[0].count * one.prices.worker.attention_dp, len(sent))
    length, cached = request.output_len, request.cached_share
    return _on_ranks(request, one, sent, ways, output_len=length, cached=cached)


def _on_ranks(
    request: ServingRequest,
    one: Candidate,
    sent: Floats,
    ways: int,
    *,
    output_len: int,
    cached: float,
) -> Outcome:
    parts = []
    for way in range(ways):
        times = sent[way::ways]
        prompts, outputs = [request.input_len] * len(times), [output_len] * len(times)
        requests = Requests(prompts=prompts, outputs=outputs, cached=cached)
        limits = {"slots": request.engine.max_sequences, "cache_tokens": one.memory.cache_tokens}
        parts.append(open_loop(one.clock, requests, sent_s=times.tolist(), **limits))
    return together(parts)


def _two_pools(
    request: ServingRequest,
    option: ServingOption,
    parts: Sequence[Candidate],
    sent: Floats,
    transfer_s: float,
) -> Outcome:
    first, second = parts
    new, before = cut(request.input_len, request.cached_share)
    counts = range(1, prompts_together(first.clock, new) + 1)
    times = [prompts_s(first.clock, count=count, new=new, before=before) for count in counts]
    ranks = option.parts[0].count * first.prices.worker.attention_dp * first.prices.worker.pp
    ready = _served(sent, servers=ranks, times_s=times) + transfer_s + request.engine.handover_s
    ways = min(option.parts[1].count * second.prices.worker.attention_dp, len(sent))
    later = max(1, request.output_len - 1)
    hit = 1.0 - 0.5 / request.input_len
    answers = _on_ranks(request, second, ready, ways, output_len=later, cached=hit)
    order = np.concatenate([np.arange(rank, len(sent), ways) for rank in range(ways)])
    ttft = ready[order] - sent[order] + request.engine.request_s
    seen = replace(answers, sent_s=sent[order], ttft_s=ttft)
    if request.output_len == 1:
        return replace(seen, tpot_s=np.full_like(ttft, np.nan), e2e_s=ttft)
    e2e = answers.e2e_s + ready[order] - sent[order]
    return replace(seen, tpot_s=(e2e - ttft) / later, e2e_s=e2e)


def _served(sent: Floats, *, servers: int, times_s: Sequence[float]) -> Floats:
    """When each of some requests, in the order of their sending, leaves equal servers with one
    queue.

    A server that is free takes all that wait, as many as `times_s` has times for: its first is that
    of one request, and so on.
    """
    free = [0.0] * servers
    heapify(free)
    done = np.empty_like(sent)
    first = 0
    while first < len(sent):
        begin = max(float(sent[first]), free[0])
        count = min(int(np.searchsorted(sent, begin, side="right")) - first, len(times_s))
        done[first : first + count] = begin + times_s[count - 1]
        heapreplace(free, begin + times_s[count - 1])
        first += count
    return done
