"""Requests through pools of workers for prompts and for answers, event by event."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from math import ceil

import numpy as np

from meshwright.serving.clock import Clock
from meshwright.serving.simulate import Outcome, Requests, outcome_of
from meshwright.serving.steady import prompt_s
from meshwright.values.errors import ConfigError

__all__ = ["Workers", "closed_loop_on_two_pools"]


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
