"""The smallest fleet of copies that keeps limits under a trace, hour by hour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from meshwright.serving.candidates import Candidate, Rejected, candidate_of, candidates
from meshwright.serving.engine import Worker
from meshwright.serving.fleet import Served, run_fleet
from meshwright.serving.fleet_result import Deployment, FleetPlan, Hour, Judged, judged, pooled
from meshwright.serving.options import one_pool
from meshwright.serving.request import ServingRequest, usual_weights
from meshwright.serving.result import ServingOption, excess
from meshwright.serving.traffic import Trace, TrafficAsked, Window, windows_of
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Node
from meshwright.values.units import GIB

__all__ = ["Told", "plan_fleet"]

Told = Callable[[int, int], None]
"""Is told how many steps are done, of how many."""
_TRIED = 3
"""Deployments whose fleets are simulated for the busiest stretch."""


def plan_fleet(
    request: ServingRequest,
    /,
    *,
    trace: Trace,
    asked: TrafficAsked | None = None,
    worker: Worker | None = None,
    progress: Told | None = None,
) -> FleetPlan:
    """Return the smallest fleet of equal copies that keeps the limits in every hour of a trace.

    The request's lengths are not read: the trace has them. Deployments are ranked in closed form at
    the trace's mean lengths; for the best few, or for `worker`, the fewest copies that keep the
    limits in the busiest stretch are found by simulation, and the fewest chips win. The winner's
    copies are then found for each hour.
    """
    asked = asked or TrafficAsked()
    _check(request, asked, trace)
    longest = replace(request, input_len=trace.longest[0], output_len=trace.longest[1])
    windows = windows_of(trace, sample=asked.sample)
    busiest = max(windows, key=lambda one: _tokens_per_s(trace, one))
    rejected: Rejected = Rejected()
    mean = _mean_request(request, asked, trace, busiest)
    ranked = _ranked(longest, mean, worker, rejected)
    steps = len(ranked) + 2 * len(windows)
    search = _Search(request, asked, trace, progress or _untold, steps)
    best: tuple[int, int, Candidate] | None = None
    considered: dict[str, int | None] = {}
    for place, (one, guess) in enumerate(ranked):
        most = one.pool.num_chips // one.prices.worker.chips
        if best is not None:
            most = min(most, (best[0] - 1) // one.prices.worker.chips)
        copies = search.fewest(one, busiest, guess=guess, most=most)
        chips = None if copies is None else copies * one.prices.worker.chips
        considered[_deployment(one).name] = chips
        if chips is not None and copies is not None:
            best = (chips, copies, one)
        search.tell(place + 1)
    if best is None:
        return search.nearest(ranked, busiest, considered, rejected)
    return search.by_hour(best[2], best[1], busiest, windows, considered, rejected)


def _untold(done: int, of: int) -> None:
    """Tell nobody."""


def _check(request: ServingRequest, asked: TrafficAsked, trace: Trace) -> None:
    """Raise ConfigError where the question has no answer."""
    if len(request.cluster.pools) > 1:
        raise ConfigError(
            f"cluster {request.cluster.name}: a fleet under a trace is of one kind of chip; name"
            " one of them"
        )
    if trace.hashes is not None and request.cached_share:
        raise ConfigError(
            f"--prefix-hits {request.cached_share:g}: of no effect, for {trace.name} names the"
            " blocks of every prompt"
        )
    if asked.router == "cache-aware" and trace.hashes is None:
        raise ConfigError(
            f"--router cache-aware: {trace.name} does not name the blocks of prompts; choose"
            " round-robin or least-loaded"
        )
    if asked.host_cache_bytes:
        _check_host(request.cluster.pools[0].node, asked.host_cache_bytes, trace)
    single = [name for name in ("ttft", "tpot", "e2e") if getattr(request, f"{name}_s") is not None]
    limited = {*single, *(name for name, _ in asked.tails)}
    if asked.goodput is not None and not single:
        raise ConfigError(
            f"--goodput {asked.goodput:g}: give what makes a request good, such as --ttft 2000"
            " --tpot 50"
        )
    if not limited & {"ttft", "e2e"}:
        raise ConfigError(
            "the smallest fleet under a trace needs a limit on how long requests wait, such as"
            " --ttft-p99 2000 or --e2e-p95 30000"
        )
    _check_context(request, trace)


def _check_host(node: Node, host_cache_bytes: float, trace: Trace) -> None:
    given = f"--host-cache-gib {host_cache_bytes / GIB:g}"
    if trace.hashes is None:
        raise ConfigError(
            f"{given}: of no effect, for {trace.name} does not name blocks of prompts"
        )
    if node.chip.host_bytes_per_s is None:
        raise ConfigError(
            f"{given}: the rate between {node.chip.name} and its host's memory is not known"
        )
    asked = host_cache_bytes * node.chips_per_node
    if node.host is not None and asked > node.host.memory_bytes:
        raise ConfigError(
            f"{given}: {asked / GIB:,.0f} GiB for {node.chips_per_node} chips of a server, whose"
            f" host has {node.host.memory_bytes / GIB:,.0f}"
        )


def _check_context(request: ServingRequest, trace: Trace) -> None:
    most = request.model.longest_tokens
    lengths = trace.prompts + trace.outputs
    if most is not None and (longer := int((lengths > most).sum())):
        raise ConfigError(
            f"{trace.name}: {longer:,} of {trace.size:,} requests are beyond the {most:,} tokens of"
            f" {request.model.name}'s context, the longest has {int(lengths.max()):,}; choose a"
            " model with a longer context, or leave them out of the file"
        )


def _tokens_per_s(trace: Trace, window: Window) -> float:
    own = slice(window.first, window.last)
    seconds = max(float(trace.sent_s[window.last - 1] - trace.sent_s[window.first]), 1.0)
    return float(trace.prompts[own].sum() + trace.outputs[own].sum()) / seconds


def _mean_request(
    request: ServingRequest, asked: TrafficAsked, trace: Trace, window: Window
) -> ServingRequest:
    """The question in closed form: the window's mean lengths and hits, and limits of means that the
    tails imply."""
    own = slice(window.first, window.last)
    limits: dict[str, Any] = {}
    for name in ("ttft", "tpot", "e2e"):
        tails = [limit for (figure, share), limit in asked.tails.items() if figure == name]
        own_limit = getattr(request, f"{name}_s")
        limits[f"{name}_s"] = min([*tails, *([own_limit] if own_limit else [])], default=None)
    share = trace.prefix_share(window.first, window.last) if trace.hashes else request.cached_share
    return replace(
        request,
        input_len=max(1, round(float(trace.prompts[own].mean()))),
        output_len=max(1, round(float(trace.outputs[own].mean()))),
        modes=("aggregated",),
        cached_share=share,
        target_rate=None,
        **limits,
    )


def _ranked(
    longest: ServingRequest, mean: ServingRequest, pinned: Worker | None, rejected: Rejected
) -> list[tuple[Candidate, float]]:
    """The best candidates, each with the requests a second of a copy: those that keep the limits of
    means before others, without a pipeline before those with one, most requests per chip first."""
    found = _candidates(longest, pinned, rejected)
    rated: list[tuple[bool, int, float, float, Candidate]] = []
    for one in found:
        options = [option for option in one_pool(mean, [one]) if option is not None]
        if not options:
            continue
        able = [option for option in options if excess(mean, option) <= 1.0]
        best = max(able or options, key=_per_copy)
        rate = _per_copy(best)
        worker = one.prices.worker
        rated.append((not able, worker.pp, -rate / worker.chips, rate, one))
    rated.sort(key=lambda item: item[:3])
    return [(one, rate) for *_, rate, one in rated[:_TRIED]]


def _per_copy(option: ServingOption) -> float:
    return option.requests_per_s / option.parts[0].count


def _candidates(
    longest: ServingRequest, worker: Worker | None, rejected: Rejected
) -> Sequence[Candidate]:
    if worker is None:
        return candidates(longest, rejected)
    pool = longest.cluster.pools[0]
    if worker.chips > pool.num_chips:
        raise ConfigError(f"{worker.name} needs {worker.chips} chips; there are {pool.num_chips}")
    weights = longest.weights or (usual_weights(longest.model, pool.node.chip),)
    caches = longest.cache or ("fp16" if weights[0] == "fp16" else "bf16",)
    return [
        candidate_of(longest, pool, worker, weight, cache) for weight in weights for cache in caches
    ]


def _deployment(one: Candidate) -> Deployment:
    prices = one.prices
    kept = prices.quantisation.name
    return Deployment(chip=one.chip, worker=prices.worker, weights=kept, cache=prices.cache)


class _Search:
    """Simulations of windows on fleets, each run once."""

    def __init__(
        self, request: ServingRequest, asked: TrafficAsked, trace: Trace, told: Told, steps: int
    ) -> None:
        self.request, self.asked, self.trace = request, asked, trace
        self.told, self.steps = told, steps
        self.known: dict[tuple[int, int, int], tuple[Served, Judged]] = {}

    def tell(self, done: int) -> None:
        """Say how far the search is."""
        self.told(min(done, self.steps), self.steps)

    def at(self, one: Candidate, window: Window, copies: int) -> tuple[Served, Judged]:
        """Return what a window sees of so many copies."""
        key = (id(one), window.hour, copies)
        if key not in self.known:
            served = run_fleet(
                one,
                self.trace,
                window,
                copies=copies,
                router=self.asked.router,
                cached_share=self.request.cached_share,
                host_cache_bytes=self.asked.host_cache_bytes,
            )
            self.known[key] = (served, judged(self.request, self.asked, served))
        return self.known[key]

    def fewest(self, one: Candidate, window: Window, *, guess: float, most: int) -> int | None:
        """Return the fewest copies that keep the limits, `guess` requests a second for each; None
        where `most` do not. More copies are taken never to be worse."""
        sent = self.trace.sent_s
        seconds = max(float(sent[window.last - 1] - sent[window.first]), 1.0)
        first = ceil(window.counted / seconds / guess)
        return _least(lambda copies: self.at(one, window, copies)[1].keeps, first, most)

    def by_hour(
        self,
        one: Candidate,
        copies: int,
        busiest: Window,
        windows: Sequence[Window],
        considered: dict[str, int | None],
        rejected: Rejected,
    ) -> FleetPlan:
        """Return the plan of one deployment: what each hour needs, and what all see at the most."""
        most = one.pool.num_chips // one.prices.worker.chips
        per_copy = _tokens_per_s(self.trace, busiest) / copies
        hours = []
        for number, window in enumerate(windows):
            first = ceil(_tokens_per_s(self.trace, window) / per_copy)
            keeps = self._keeps(one, window)
            needed = _least(keeps, first, most)
            if needed is None:
                return self.nearest([(one, 0.0)], window, considered, rejected)
            hours.append(Hour(window=window, copies=needed, seen=self.at(one, window, needed)[1]))
            self.tell(len(considered) + number + 1)
        fleet = max(hour.copies for hour in hours)
        parts = []
        for number, window in enumerate(windows):
            served = self.at(one, window, fleet)[0]
            parts.append((served, window.requests / window.counted))
            self.tell(len(considered) + len(windows) + number + 1)
        self.tell(self.steps)
        return self._plan(
            one,
            hours=tuple(hours),
            seen=pooled(self.request, self.asked, parts),
            considered=considered,
            rejected=dict(rejected),
        )

    def _keeps(self, one: Candidate, window: Window) -> Callable[[int], bool]:
        return lambda copies: self.at(one, window, copies)[1].keeps

    def nearest(
        self,
        ranked: Sequence[tuple[Candidate, float]],
        window: Window,
        considered: dict[str, int | None],
        rejected: Rejected,
    ) -> FleetPlan:
        """Return what the busiest stretch sees of the best that the chips hold."""
        if not ranked:
            return FleetPlan(
                trace=self.trace,
                deployment=None,
                hours=(),
                seen=None,
                most_copies=0,
                usd_per_chip_hour=None,
                considered=considered,
                rejected=dict(rejected),
            )
        seen = [
            (self.at(one, window, one.pool.num_chips // one.prices.worker.chips)[1], one)
            for one, _ in ranked
        ]
        best, one = min(seen, key=lambda pair: pair[0].excess)
        return self._plan(one, hours=(), seen=best, considered=considered, rejected=dict(rejected))

    def _plan(
        self,
        one: Candidate,
        *,
        hours: tuple[Hour, ...],
        seen: Judged,
        considered: dict[str, int | None],
        rejected: dict[str, int],
    ) -> FleetPlan:
        return FleetPlan(
            trace=self.trace,
            deployment=_deployment(one),
            hours=hours,
            seen=seen,
            most_copies=one.pool.num_chips // one.prices.worker.chips,
            usd_per_chip_hour=self.request.usd_per_chip_hour or one.pool.node.chip.usd_per_hour,
            considered=considered,
            rejected=rejected,
            notes=(*self.trace.notes, *self._notes(hours)),
        )

    def _notes(self, hours: Sequence[Hour]) -> list[str]:
        counted = sum(hour.window.counted for hour in hours)
        notes = []
        if hours and counted < self.trace.size:
            share = counted / self.trace.size
            notes.append(
                f"simulated: {counted:,} of {self.trace.size:,} requests ({share:.0%}), the busiest"
                " stretch of each hour, so that figures are those of the busiest minutes; --sample"
                " takes more"
            )
        short = [hour for hour in hours if self._seconds(hour.window) < _SPANS * _mean_e2e(hour)]
        if short and counted < self.trace.size:
            notes.append(
                f"in {len(short)} hours the stretch is shorter than {_SPANS} times a request takes;"
                " its copies are hardly full before it ends: raise --sample"
            )
        return notes

    def _seconds(self, window: Window) -> float:
        return float(self.trace.sent_s[window.last - 1] - self.trace.sent_s[window.warm])


_SPANS = 5
"""Times a request's time that a stretch lasts at least before a note says it is short."""


def _mean_e2e(hour: Hour) -> float:
    return hour.seen.figures["e2e"]["mean"]


def _least(keeps: Callable[[int], bool], guess: int, most: int) -> int | None:
    """Return the least number up to `most` of which `keeps` is true, taken to be true from some
    number on; None where it is true of none.

    From the guess up by a third until it is kept, or down by a quarter until it is not; then the
    rest in halves.
    """
    if most < 1:
        return None
    broken, kept = 0, None
    at = min(max(1, guess), most)
    while True:
        if keeps(at):
            kept = at
        else:
            broken = at
        if kept is None:
            if broken >= most:
                return None
            at = min(most, max(broken + 1, ceil(broken * _UP)))
        elif kept - broken <= 1:
            return kept
        elif broken == 0:
            at = max(1, min(kept - 1, int(kept * _DOWN)))
        else:
            at = (kept + broken) // 2


_UP, _DOWN = 4 / 3, 3 / 4
