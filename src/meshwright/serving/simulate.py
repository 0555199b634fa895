"""Requests through an engine, event by event, on priced iterations."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil

import numpy as np

from meshwright.serving.clock import Clock
from meshwright.serving.kernels import Floats
from meshwright.serving.memory import state_tokens
from meshwright.values.errors import ConfigError
from meshwright.values.units import counted

__all__ = ["Outcome", "Requests", "Run", "closed_loop", "open_loop", "outcome_of", "prefix_hit"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """What is asked for; sequences of one length."""

    prompts: Sequence[int]
    """Tokens of each prompt."""
    outputs: Sequence[int]
    """New tokens of each answer."""
    cached: float = 0.0
    """Share of every prompt that the prefix cache already holds."""
    distinct: int | None = None
    """The first so many prompts are new, later ones repeat them, and the prefix cache holds them
    whole; None: all are new."""

    def __post_init__(self) -> None:
        if len(self.prompts) != len(self.outputs) or not self.prompts:
            raise ConfigError(
                f"{len(self.prompts)} prompts and {len(self.outputs)} answers: expected as many,"
                " and one at least"
            )
        if min(self.prompts) < 1 or min(self.outputs) < 1:
            raise ConfigError("prompts and answers have 1 token or more each")
        if not 0.0 <= self.cached < 1.0:
            raise ConfigError(f"prefix hit share {self.cached}: expected 0 or more and less than 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What every request saw, in the order in which they were sent; seconds."""

    sent_s: Floats
    ttft_s: Floats
    """From sending to the first token."""
    tpot_s: Floats
    """(finish - first token) / (output tokens - 1), NaN where one token was asked for."""
    e2e_s: Floats
    output_tokens: int
    makespan_s: float
    """From the first request's sending to the last token."""

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all requests over the makespan."""
        return self.output_tokens / self.makespan_s


def closed_loop(
    clock: Clock,
    requests: Requests,
    *,
    concurrency: int,
    slots: int,
    cache_tokens: int,
    gap_s: float = 0.0,
) -> Outcome:
    """Run requests so that `concurrency` are under way: first one every `gap_s` (0: all at once),
    then one for each that ends.

    Formula:  continuous batching, `Run`
    Units:    seconds.
    Source:   as vLLM's benchmark with --max-concurrency and an infinite rate.
    Valid:    requests that fit into the cache one by one.
    Checked:  tests/serving/test_simulate.py
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency={concurrency}: expected 1 or more")
    run = _run_of(clock, requests, slots=slots, cache_tokens=cache_tokens)
    run.closed(concurrency, gap_s)
    return outcome_of(requests, run.times, outside_s=clock.prices.engine.request_s)


def open_loop(
    clock: Clock, requests: Requests, *, sent_s: Sequence[float], slots: int, cache_tokens: int
) -> Outcome:
    """Run requests that are sent at given times, which rise.

    Formula:  continuous batching, `Run`
    Units:    seconds.
    Source:   as closed_loop.
    Valid:    as closed_loop.
    Checked:  tests/serving/test_simulate.py
    """
    if len(sent_s) != len(requests.prompts):
        raise ConfigError(
            f"{counted(len(sent_s), 'time')} for {counted(len(requests.prompts), 'request')}:"
            " expected one each"
        )
    run = _run_of(clock, requests, slots=slots, cache_tokens=cache_tokens)
    run.open(sent_s)
    return outcome_of(requests, run.times, outside_s=clock.prices.engine.request_s)


def _run_of(clock: Clock, requests: Requests, *, slots: int, cache_tokens: int) -> Run:
    """Return a simulation that knows all its requests."""
    mean = sum(requests.outputs) / len(requests.outputs)
    run = Run(clock, slots=slots, cache_tokens=cache_tokens, mean_output=mean)
    for number, (prompt, output) in enumerate(zip(requests.prompts, requests.outputs, strict=True)):
        repeats = requests.distinct is not None and number >= requests.distinct
        hit = prefix_hit(prompt, prompt) if repeats else int(requests.cached * prompt)
        run.add(prompt=prompt, output=output, hit=hit)
    return run


def prefix_hit(prompt: int, held: int) -> int:
    """Return how many tokens of a prompt a prefix cache saves that holds its first `held`: whole
    blocks, and never the last token."""
    most = min(held, prompt - 1)
    return most - most % _BLOCK


class Run:
    """One simulation: of requests that are all known, by `open` and `closed`, or of such as a
    router offers one after the other, by `advance`, `offer` and `finish`.

    Iterations of running sequences alone are taken together up to the next event: an answer that
    ends, a request that arrives. A request holds room in the cache for its prompt and the reserved
    share of its answer. Engines that mix run prompts beside the running sequences up to
    `chunk_tokens` tokens in all; others stop them. The engine looks for new requests after every
    iteration with a prompt and every `poll_steps` iterations without; with `overlap` the next
    iteration is already under way by then, and they join the one after. Of several attention ranks
    one is simulated; with `balance_steps` its prompts wait for the others' as long as the mean of
    their arrivals.
    """

    def __init__(self, clock: Clock, *, slots: int, cache_tokens: int, mean_output: float) -> None:
        self.clock = clock
        self.prompts: list[int] = []
        self.outputs: list[int] = []
        self.hits: list[int] = []
        """Tokens of each prompt that the prefix cache holds."""
        self.loads_s: list[float] = []
        """Time in which each prompt's blocks come from the host's memory, one prompt after the
        other, before the engine sees it."""
        self.rooms: list[int] = []
        """Tokens of the cache that each request holds while it runs."""
        self.sent: list[float] = []
        self.first: list[float] = []
        self.done: list[float] = []
        self.slots, self.cache_tokens, self.mean_output = slots, cache_tokens, mean_output
        self.state = ceil(state_tokens(clock.prices))
        self._take_engine(clock)
        self.now = 0.0
        self.step = 0
        self.ends: list[tuple[int, int]] = []
        self.offset = 0
        """Sum over running ones of (tokens seen - step): contexts sum to this + running * step."""
        self.held = 0
        self.prompts_held = 0
        """Of `held`, tokens of prompts."""
        self.opens = 0
        """The step from which prompts may begin."""
        self.looked = 0
        """A step at which the engine looked for new requests; it looks again after every
        `poll_steps` from there."""
        self.front_free = 0.0
        self.coming: deque[tuple[float, int]] = deque()
        """(when it reaches the engine, request), in order."""
        self.outside: deque[int] = deque()
        """Requests that were sent and that the engine has not seen."""
        self.seen: deque[int] = deque()
        """Requests that join the iteration after the next."""
        self.waiting: deque[int] = deque()
        self.partial: list[list[int]] = []
        """[request, prompt tokens done] of prompts under way."""
        self.next = 0
        self.ended: deque[tuple[float, int]] = deque()
        """(when, room) of requests that ended, until a router has seen it: an iteration that is
        simulated whole ends later than the moment up to which it was."""
        self.under_way = 0
        """Requests that a router has sent and not seen end."""
        self.room_under_way = 0
        """Tokens of the cache that they hold or wait for."""
        self.quiet_s = 0.0
        """Nothing ends and no prompt begins before this moment, unless a request is offered."""
        self.concurrency = 0

    def add(self, *, prompt: int, output: int, hit: int, load_s: float = 0.0) -> None:
        """Know a request, to be sent after those that are known; ConfigError where the cache never
        has room for it."""
        longest = prompt + output + self.state
        if longest > self.cache_tokens:
            raise ConfigError(
                f"a request of {longest} tokens does not fit into a cache of"
                f" {self.cache_tokens} tokens"
            )
        self.prompts.append(prompt)
        self.outputs.append(output)
        self.hits.append(hit)
        self.loads_s.append(load_s)
        self.rooms.append(prompt + int(self.engine.cache_reserved * output) + self.state)
        for times in (self.sent, self.first, self.done):
            times.append(0.0)

    @property
    def times(self) -> tuple[list[float], list[float], list[float]]:
        """When each request was sent, got its first token and ended."""
        return self.sent, self.first, self.done

    def look(self, when: float) -> None:
        """See which requests have ended by a moment up to which this has run."""
        while self.ended and self.ended[0][0] <= when:
            self.room_under_way -= self.ended.popleft()[1]
            self.under_way -= 1

    def offer(
        self, when: float, *, prompt: int, output: int, hit: int, load_s: float = 0.0
    ) -> None:
        """Send a request, not before others that were offered; `advance` to this moment first."""
        self.add(prompt=prompt, output=output, hit=hit, load_s=load_s)
        if self._idle():
            self.now = max(self.now, when)
        self._send(when)
        self.quiet_s = self.now

    def advance(self, until: float) -> None:
        """Run to a moment, or to the end of the iteration that it lies in."""
        while self.now < until and not self._idle():
            self._iterate(until)
        self.quiet_s = self._quiet_until()

    def finish(self) -> None:
        """Run to the last token."""
        self.advance(float("inf"))

    def _quiet_until(self) -> float:
        if self.partial or self.outside or self.seen or self._opens_to_next():
            return self.now
        ends = self.coming[0][0] if self.coming else float("inf")
        if not self.ends:
            return ends
        batch, steps = len(self.ends), self.ends[0][0] - self.step
        each = self.clock.running_s(batch, self.offset / batch + self.step + 0.5 * steps)
        return min(ends, self.now + steps * each)

    def _opens_to_next(self) -> bool:
        """Whether the first that waits may begin now."""
        if not self.waiting or self.step < self.opens:
            return bool(self.waiting)
        room = self.held + self.rooms[self.waiting[0]] <= self.cache_tokens
        return room and len(self.ends) < self.slots

    def _take_engine(self, clock: Clock) -> None:
        """Take what the engine does, with its waits in iterations."""
        self.engine = engine = clock.prices.engine
        self.chunk = engine.chunk_tokens or clock.most_tokens
        self.full = engine.wait_share * self.chunk
        harmonic = sum(1.0 / rank for rank in range(1, clock.prices.worker.attention_dp))
        self.peers = harmonic * self.mean_output
        """Iterations until each of the other attention ranks has seen a request, times the
        sequences that run on one: the mean of the longest of as many exponential waits."""
        self.front_s = engine.token_s * clock.prices.worker.attention_dp
        """Time of the front process per token of a prompt, the other ranks' between."""

    def closed(self, concurrency: int, gap_s: float) -> None:
        """Run what is known by so many clients."""
        self.concurrency = concurrency
        for client in range(min(concurrency, len(self.prompts))):
            self._send(client * gap_s)
        while not self._idle():
            self._iterate(float("inf"))

    def open(self, sent_s: Sequence[float]) -> None:
        """Run what is known, sent at these times."""
        count = len(sent_s)
        while self.next < count or not self._idle():
            if self._idle():
                self.now = max(self.now, sent_s[self.next])
            while self.next < count and sent_s[self.next] <= self.now:
                self._send(sent_s[self.next])
            self._iterate(sent_s[self.next] if self.next < count else float("inf"))

    def _idle(self) -> bool:
        return not (
            self.ends or self.waiting or self.partial or self.outside or self.seen or self.coming
        )

    def _send(self, when: float) -> None:
        self.sent[self.next] = when
        self.room_under_way += self.rooms[self.next]
        self.under_way += 1
        front_s = self.front_s * self.prompts[self.next] + self.loads_s[self.next]
        if front_s or when > self.now:
            self.front_free = max(self.front_free, when) + front_s
            self.coming.append((self.front_free, self.next))
        else:
            self.outside.append(self.next)
        self.next += 1

    def _iterate(self, until: float) -> None:
        if self.coming:
            if not (self.ends or self.waiting or self.partial or self.outside or self.seen):
                self.now = max(self.now, self.coming[0][0])
            while self.coming and self.coming[0][0] <= self.now:
                self.outside.append(self.coming.popleft()[1])
            until = min(until, self.coming[0][0]) if self.coming else until
        self._look()
        self._admit()
        if self.partial:
            self._run_prompts()
            self.looked = self.step
        elif self.ends:
            self._run_answers(until)

    def _look(self) -> None:
        """See what has arrived, where the engine looks now; when idle it always looks."""
        self.waiting += self.seen
        self.seen.clear()
        if self.ends and (self.step - self.looked) % self.engine.poll_steps:
            return
        if not (self.waiting or self.partial):
            balanced = int(self.peers / max(len(self.ends), 1))
            wait = max(self.engine.wait_steps, min(self.engine.balance_steps, balanced))
            self.opens = self.step + wait
        later = self.engine.overlap and (self.ends or self.partial)
        (self.seen if later else self.waiting).extend(self.outside)
        self.outside.clear()

    def _admit(self) -> None:
        waiting = self.waiting
        if self.ends and not self.partial and self.step < self.opens and not self._full():
            return
        while waiting and len(self.ends) + len(self.partial) < self.slots:
            request = waiting[0]
            size = self.rooms[request]
            if self.held + size > self.cache_tokens:
                return
            waiting.popleft()
            self.held += size
            self.prompts_held += self.prompts[request]
            self.partial.append([request, self.hits[request]])
            if sum(self.prompts[r] - done for r, done in self.partial[-_LOOK_AHEAD:]) >= self.chunk:
                return

    def _full(self) -> bool:
        """Whether prompts that wait for one another fill an iteration."""
        return (
            self.engine.wait_steps > 0
            and sum(self.prompts[r] for r in self.waiting) + len(self.ends) >= self.full
        )

    def _run_prompts(self) -> None:
        running = len(self.ends) if self.engine.mixed else 0
        room = max(self.chunk - running, 1)
        used, attention, ended = 0, 0.0, []
        for entry in self.partial:
            request, before = entry
            left = self.prompts[request] - before
            new = min(left, room - used)
            if new <= 0 or (self.engine.whole_prompts and used and new < left):
                break
            attention += self.clock.prompt_attention_s(new, before)
            used += new
            entry[1] += new
            if entry[1] == self.prompts[request]:
                ended.append(request)
        context = self.offset / running + self.step if running else 0.0
        self.now += self.clock.mixed_s(
            new=used, attention=attention, heads=len(ended), batch=running, context=context
        )
        if running:
            self.step += 1
            self._finish()
        if ended:
            del self.partial[: len(ended)]
        for request in ended:
            self._start(request)

    def _start(self, request: int) -> None:
        self.first[request] = self.now
        if self.outputs[request] == 1:
            self._leave(request)
            return
        heappush(self.ends, (self.step + self.outputs[request] - 1, request))
        self.offset += self.prompts[request] + 1 - self.step

    def _run_answers(self, until: float) -> None:
        batch = len(self.ends)
        steps = self.ends[0][0] - self.step
        context = self.offset / batch + self.step
        if self.waiting and self.step < self.opens:
            steps = min(steps, self.opens - self.step)
        if self.seen:
            steps = 1
        if self.outside:
            every = self.engine.poll_steps
            steps = min(steps, every - (self.step - self.looked) % every)
        each = self.clock.running_s(batch, context + 0.5 * steps)
        if self.now + steps * each > until:
            steps = max(1, min(steps, ceil((until - self.now) / each)))
            each = self.clock.running_s(batch, context + 0.5 * steps)
        self.now += steps * each
        self.step += steps
        self._finish()

    def _finish(self) -> None:
        ends = self.ends
        while ends and ends[0][0] <= self.step:
            _, request = heappop(ends)
            self.offset -= self.prompts[request] + self.outputs[request] - self.step
            self._leave(request)

    def _leave(self, request: int) -> None:
        self.done[request] = self.now
        self.held -= self.rooms[request]
        self.prompts_held -= self.prompts[request]
        self.ended.append((self.now, self.rooms[request]))
        if self.concurrency and self.next < len(self.prompts):
            self._send(self.now)


def outcome_of(
    requests: Requests, times: tuple[list[float], list[float], list[float]], *, outside_s: float
) -> Outcome:
    """Return what requests saw that were sent, began and ended at these times in the engine, and
    spent `outside_s` before."""
    sent, first, done = map(np.array, times)
    later = np.array(requests.outputs, dtype=np.float64) - 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(later > 0, (done - first) / later, np.nan)
    return Outcome(
        sent_s=sent,
        ttft_s=first - sent + outside_s,
        tpot_s=tpot,
        e2e_s=done - sent + outside_s,
        output_tokens=int(sum(requests.outputs)),
        makespan_s=float(done.max() - sent.min()),
    )


_BLOCK = 16
"""Tokens of a block of the prefix cache; the last token of a prompt is always worked on."""
_LOOK_AHEAD = 64
