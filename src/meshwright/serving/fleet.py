"""Copies of a deployment behind a router, request by request, with the prefix caches that the
router's choices make."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.serving.candidates import Candidate
from meshwright.serving.kernels import Floats
from meshwright.serving.simulate import Run, prefix_hit
from meshwright.serving.traffic import Router, Trace, Window

__all__ = ["PrefixCache", "Served", "run_fleet"]


class PrefixCache:
    """Blocks of prompts that a rank holds by name; the longest unused leaves first, the end of a
    prompt before its beginning, for the host's memory as far as that has room."""

    def __init__(self, *, host_room: int = 0) -> None:
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.host: OrderedDict[int, None] = OrderedDict()
        self.host_room = host_room

    def held(self, names: Sequence[int]) -> int:
        """Return how many blocks of a prompt, from its first on, are held, here or there."""
        blocks, host = self.blocks, self.host
        for count, name in enumerate(names):
            if name not in blocks and name not in host:
                return count
        return len(names)

    def on_host(self, names: Sequence[int]) -> int:
        """Return how many of these blocks the host's memory alone holds."""
        return sum(name in self.host for name in names) if self.host else 0

    def use(self, names: Sequence[int], *, room: int) -> None:
        """Hold a prompt's blocks as the last used, with room for so many in all."""
        blocks = self.blocks
        for name in reversed(names):
            blocks[name] = None
            blocks.move_to_end(name)
            self.host.pop(name, None)
        while len(blocks) > room:
            left, _ = blocks.popitem(last=False)
            if self.host_room:
                self.host[left] = None
        while len(self.host) > self.host_room:
            self.host.popitem(last=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What the counted requests of a window saw; seconds, in no order."""

    ttft_s: Floats
    tpot_s: Floats
    """NaN where one token was asked for."""
    e2e_s: Floats
    hit_frac: float
    """Share of the prompts' tokens that prefix caches held."""


class _Rank:
    """One attention rank of a copy, which takes requests of its own."""

    def __init__(self, one: Candidate, mean_output: float, host_room: int) -> None:
        engine = one.prices.engine
        cache_tokens = one.memory.cache_tokens
        slots = engine.max_sequences
        self.run = Run(one.clock, slots=slots, cache_tokens=cache_tokens, mean_output=mean_output)
        self.cache = PrefixCache(host_room=host_room)

    def room(self, block_tokens: int) -> int:
        """Blocks of prompts that the KV cache has room for, beside answers under way."""
        run = self.run
        return (run.cache_tokens - (run.held - run.prompts_held)) // block_tokens


def run_fleet(
    one: Candidate,
    trace: Trace,
    window: Window,
    *,
    copies: int,
    router: Router,
    cached_share: float = 0.0,
    host_cache_bytes: float = 0.0,
) -> Served:
    """Return what a window's requests see of so many copies behind a router.

    Formula:  continuous batching on every attention rank (`Run`). Round robin: in turn. Least
              loaded: the rank with the fewest requests under way, of equals the next in turn. Cache
              aware: the least sum of the prompt's blocks that are not held and of the blocks under
              way, with the request's own. A prompt is held from when it is sent, in what room the
              KV cache leaves beside answers, the longest unused leaving first; for so many bytes
              of the host's memory for each chip, from where a prompt's blocks come back one after
              the other at the rate of the chip's link, before the engine sees the prompt
    Units:    seconds; `cached_share` of every prompt is held where the trace names no blocks.
    Source:   Dynamo, design documents, router design: cost = overlap weight (1) * prefill blocks +
              potential active blocks; vLLM frees the blocks of a prompt from its end.
    Valid:    routers that know at once what has ended.
    Checked:  tests/serving/test_fleet.py
    """
    mean = float(trace.outputs[window.first : window.last].mean())
    block_bytes = trace.block_tokens * one.memory.cache_per_token
    room = int(host_cache_bytes / block_bytes)
    count = copies * one.prices.worker.attention_dp
    fleet = _Fleet(
        [_Rank(one, mean, room) for _ in range(count)],
        trace,
        router=router,
        cached_share=cached_share,
        block_s=block_bytes / (one.pool.node.chip.host_bytes_per_s or float("inf")),
    )
    for number in range(window.warm, window.last):
        fleet.send(number, counted=number >= window.first)
    for rank in fleet.ranks:
        rank.run.finish()
    return fleet.served(one.prices.engine.request_s)


class _Fleet:
    def __init__(
        self,
        ranks: Sequence[_Rank],
        trace: Trace,
        *,
        router: Router,
        cached_share: float,
        block_s: float,
    ) -> None:
        self.block_s = block_s
        self.ranks, self.trace, self.router = ranks, trace, router
        self.cached_share = cached_share
        self.turn: int = 0
        self.where: list[tuple[int, int]] = []
        """Rank, and number in the rank, of each counted request."""
        self.saved = self.asked = 0
        self.sent, self.prompts = trace.sent_s, trace.prompts
        self.outputs = trace.outputs

    def send(self, number: int, *, counted: bool) -> None:
        """Send a request of the trace to the rank that the router chooses."""
        when, prompt = float(self.sent[number]), int(self.prompts[number])
        names = self.trace.hashes[number] if self.trace.hashes is not None else ()
        at = self._choose(when, prompt, names)
        rank = self.ranks[at]
        rank.run.advance(when)
        hit, load_s = int(self.cached_share * prompt), 0.0
        if names:
            block = self.trace.block_tokens
            held = rank.cache.held(names)
            hit = prefix_hit(prompt, held * block)
            load_s = rank.cache.on_host(names[:held]) * self.block_s
            rank.cache.use(names, room=rank.room(block))
        if counted:
            self.where.append((at, rank.run.next))
            self.saved += hit
            self.asked += prompt
        output = int(self.outputs[number])
        rank.run.offer(when, prompt=prompt, output=output, hit=hit, load_s=load_s)

    def _choose(self, when: float, prompt: int, names: Sequence[int]) -> int:
        count = len(self.ranks)
        turn = self.turn
        if self.router == "round-robin" or count == 1:
            self.turn = (turn + 1) % count
            return turn
        for rank in self.ranks:
            if rank.run.quiet_s < when:
                rank.run.advance(when)
            rank.run.look(when)
        # ranks from the one whose turn it is: of equals `min` takes the first
        order: list[int] = [*range(turn, count), *range(turn)]
        costs = [self._cost(rank, prompt, names) for rank in self.ranks]
        best: int = min(order, key=lambda at: costs[at])
        self.turn = (best + 1) % count
        return best

    def _cost(self, rank: _Rank, prompt: int, names: Sequence[int]) -> float:
        """What the router holds against a rank: requests, or blocks."""
        if self.router == "least-loaded":
            return rank.run.under_way
        block = self.trace.block_tokens
        new = prompt - prefix_hit(prompt, rank.cache.held(names) * block)
        return (new + rank.run.room_under_way + prompt) / block

    def served(self, outside_s: float) -> Served:
        """Return what the counted requests saw, all of which have ended."""
        times = [tuple(map(np.array, rank.run.times)) for rank in self.ranks]
        lengths = [np.array(rank.run.outputs, dtype=np.float64) for rank in self.ranks]
        columns: list[tuple[Floats, Floats, Floats, Floats]] = []
        place = np.array(self.where, dtype=np.int64).reshape(-1, 2)
        for at, (sent, first, done) in enumerate(times):
            own = place[place[:, 0] == at, 1]
            columns.append((sent[own], first[own], done[own], lengths[at][own] - 1.0))
        sent, first, done, later = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        with np.errstate(invalid="ignore", divide="ignore"):
            tpot = np.where(later > 0, (done - first) / later, np.nan)
        return Served(
            ttft_s=first - sent + outside_s,
            tpot_s=tpot,
            e2e_s=done - sent + outside_s,
            hit_frac=self.saved / self.asked,
        )
