"""Poisson arrivals on a deployment that a search found, one pool or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

import numpy as np

from meshwright.serving.kernels import Floats
from meshwright.serving.load import summaries, together
from meshwright.serving.request import ServingRequest
from meshwright.serving.result import ServingOption
from meshwright.serving.simulate import Outcome, Requests, open_loop
from meshwright.serving.space import Candidate
from meshwright.serving.steady import prompts_s, prompts_together

__all__ = ["under_arrivals"]

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
    outcome = (
        _one_pool(request, option, parts[0], sent)
        if len(parts) == 1
        else _two_pools(request, option, parts, sent, transfer_s)
    )
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
    return _on_ranks(
        request, one, sent, ways, output_len=request.output_len, cached=request.cached_share
    )


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
        requests = Requests(
            prompts=[request.input_len] * len(times),
            outputs=[output_len] * len(times),
            cached=cached,
        )
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
    before = int(request.cached_share * request.input_len)
    new = max(1, request.input_len - before)
    most = prompts_together(first.clock, new)
    times = [
        prompts_s(first.clock, count=count, new=new, before=before) for count in range(1, most + 1)
    ]
    ranks = option.parts[0].count * first.prices.worker.attention_dp * first.prices.worker.pp
    ready = _served(sent, servers=ranks, times_s=times) + transfer_s + request.engine.handover_s
    ways = min(option.parts[1].count * second.prices.worker.attention_dp, len(sent))
    later = max(1, request.output_len - 1)
    answers = _on_ranks(
        request, second, ready, ways, output_len=later, cached=1.0 - 0.5 / request.input_len
    )
    order = np.concatenate([np.arange(rank, len(sent), ways) for rank in range(ways)])
    ttft = ready[order] - sent[order] + request.engine.request_s
    if request.output_len == 1:
        return replace(
            answers, sent_s=sent[order], ttft_s=ttft, tpot_s=np.full_like(ttft, np.nan), e2e_s=ttft
        )
    e2e = answers.e2e_s + ready[order] - sent[order]
    return replace(answers, sent_s=sent[order], ttft_s=ttft, tpot_s=(e2e - ttft) / later, e2e_s=e2e)


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
