"""A simulated load on all copies of a deployment, or on two pools, and what requests saw of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import ceil
from typing import Any

import numpy as np

from meshwright.serving.candidates import Candidate, candidate_of
from meshwright.serving.clock import Clock
from meshwright.serving.engine import Worker
from meshwright.serving.kernels import Floats
from meshwright.serving.request import ServingRequest
from meshwright.serving.result import ServingOption
from meshwright.serving.simulate import Outcome, Requests, closed_loop, open_loop, outcome_of
from meshwright.serving.steady import cut, prompt_s, prompts_s, prompts_together
from meshwright.values.errors import ConfigError

__all__ = [
    "Seen",
    "Workers",
    "closed_loop_on_two_pools",
    "simulate_load",
    "together",
    "under_arrivals",
]

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
        ways = min(option.parts[0].count * parts[0].prices.worker.attention_dp, count)
        length, cached = request.output_len, request.cached_share
        outcome = _on_ranks(request, parts[0], sent, ways, output_len=length, cached=cached)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """Equal workers of one pool."""

    clock: Clock
    count: int
    sequences: int
    """That a worker runs at once at most, over all its attention ranks."""


@dataclass(slots=True)
class _Decoder:
    """A worker for answers: all its sequences step together."""

    ends: list[tuple[float, int]] = field(default_factory=list)
    """(step at which it ends, request)."""
    waiting: deque[int] = field(default_factory=deque)
    step: float = 0.0
    seen_s: float = 0.0
    """When `step` was reached."""
    tokens: float = 0.0
    """Sum over running ones of (prompt - first step): contexts sum to this + running * step."""
    each_s: float = 0.0
    version: int = 0


def closed_loop_on_two_pools(
    prompts: Workers, answers: Workers, requests: Requests, *, concurrency: int, transfer_s: float
) -> Outcome:
    """Run requests so that `concurrency` are under way: all start at once, then one for each that
    ends.

    Formula:  prompts wait, first come first served, for the first attention rank that is free,
              which takes as many as an iteration has room for; `transfer_s` later the request goes
              to the workers for answers in turn, where it waits until one of the worker's sequences
              ends, though others may have room; the sequences of a worker step together, at the
              price of those that run
    Units:    seconds.
    Source:   Dynamo's router sends requests to workers in turn (round robin) unless told otherwise;
              of 200 published runs the median error of TTFT is 17 % so, 26 % by chance.
    Valid:    the cache of a request is sent once, after its prompt; the first token reaches the
              client when the answer starts.
    Checked:  tests/serving/test_two_pools.py
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency={concurrency}: expected 1 or more")
    return _Run(prompts, answers, requests, transfer_s).closed(concurrency)


class _Run:
    def __init__(
        self, prompts: Workers, answers: Workers, requests: Requests, transfer_s: float
    ) -> None:
        self.prompts, self.answers = prompts, answers
        self.requests, self.transfer_s = requests, transfer_s
        size = len(requests.prompts)
        self.sent, self.first, self.done = [0.0] * size, [0.0] * size, [0.0] * size
        worker = prompts.clock.prices.worker
        self.free = prompts.count * worker.attention_dp * worker.pp
        self.most = max(1, prompts.sequences // worker.attention_dp)
        self.room = prompts.clock.prices.engine.chunk_tokens or prompts.clock.most_tokens
        self.queue: deque[int] = deque()
        self.decoders = [_Decoder() for _ in range(answers.count)]
        self.ranks = answers.clock.prices.worker.attention_dp * answers.clock.prices.worker.pp
        self.turn = 0
        self.next = 0
        self.events: list[tuple[float, int, str, tuple[int, ...]]] = []
        self.order = count()

    def closed(self, concurrency: int) -> Outcome:
        for _ in range(min(concurrency, len(self.sent))):
            self._send(0.0)
        self._serve(0.0)
        while self.events:
            now, _, kind, which = heappop(self.events)
            if kind == "prompts":
                self.free += 1
                for request in which:
                    self._add(now + self.transfer_s, "answer", (request,))
                self._serve(now)
            elif kind == "answer":
                self._arrive(now, which[0])
            elif which[1] == self.decoders[which[0]].version:
                self._end(now, which[0])
        return self._outcome()

    def _add(self, when: float, kind: str, which: tuple[int, ...]) -> None:
        heappush(self.events, (when, next(self.order), kind, which))

    def _send(self, now: float) -> None:
        if self.next < len(self.sent):
            self.sent[self.next] = now
            self.queue.append(self.next)
            self.next += 1

    def _serve(self, now: float) -> None:
        """Give free ranks the prompts that wait."""
        while self.free and self.queue:
            lot = [self.queue.popleft()]
            used = self.requests.prompts[lot[0]]
            share = ceil(len(self.queue) / self.free)
            while (
                self.queue
                and len(lot) < min(self.most, share)
                and used + self.requests.prompts[self.queue[0]] <= self.room
            ):
                used += self.requests.prompts[self.queue[0]]
                lot.append(self.queue.popleft())
            self.free -= 1
            self._add(now + self._prompts_s(lot, used), "prompts", tuple(lot))

    def _prompts_s(self, lot: Sequence[int], tokens: int) -> float:
        clock = self.prompts.clock
        if len(lot) == 1:
            return prompt_s(clock, new=tokens)
        attention = sum(clock.prompt_attention_s(self.requests.prompts[one], 0) for one in lot)
        device = clock.tokens_s[min(tokens, clock.most_tokens)] + attention
        return max(device, clock.launch_s) + clock.head_s[len(lot)]

    def _arrive(self, now: float, request: int) -> None:
        which = self.turn
        self.turn = (self.turn + 1) % len(self.decoders)
        self.decoders[which].waiting.append(request)
        self._advance(now, which)
        self._fill(now, which)

    def _advance(self, now: float, which: int) -> None:
        one = self.decoders[which]
        if one.ends and one.each_s:
            one.step += (now - one.seen_s) / one.each_s
        one.seen_s = now

    def _end(self, now: float, which: int) -> None:
        self._advance(now, which)
        one = self.decoders[which]
        one.step = max(one.step, one.ends[0][0])
        while one.ends and one.ends[0][0] <= one.step + _SLACK:
            end, request = heappop(one.ends)
            began = end - self.requests.outputs[request] + 1
            one.tokens -= self.requests.prompts[request] - began
            self.done[request] = now
            self._send(now)
        self._serve(now)
        self._fill(now, which)

    def _fill(self, now: float, which: int) -> None:
        one = self.decoders[which]
        while one.waiting and len(one.ends) < self.answers.sequences:
            request = one.waiting.popleft()
            self.first[request] = now
            heappush(one.ends, (one.step + self.requests.outputs[request] - 1, request))
            one.tokens += self.requests.prompts[request] - one.step
        one.version += 1
        if one.ends:
            running = len(one.ends)
            batch = min(max(1, ceil(running / self.ranks)), self.answers.clock.most_tokens)
            one.each_s = self.answers.clock.running_s(batch, one.tokens / running + one.step)
            left_s = max(one.ends[0][0] - one.step, 0.0) * one.each_s
            self._add(now + left_s, "end", (which, one.version))

    def _outcome(self) -> Outcome:
        engine = self.answers.clock.prices.engine
        found = outcome_of(
            self.requests,
            (self.sent, self.first, self.done),
            outside_s=engine.request_s + engine.handover_s,
        )
        look = 0.5 * engine.poll_steps * np.nan_to_num(found.tpot_s)
        return replace(found, ttft_s=found.ttft_s + look, e2e_s=found.e2e_s + look)


_SLACK = 1e-9
"""Of a step: sums of times are not exact."""
