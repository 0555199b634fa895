"""Search deployments of a model for a load under limits of latency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from meshwright.errors import ConfigError
from meshwright.serving.arrivals import under_arrivals
from meshwright.serving.deployment import Worker
from meshwright.serving.memory import cache_bytes_per_token
from meshwright.serving.quantisation import Cache, Weights
from meshwright.serving.request import Mode, ServingRequest
from meshwright.serving.result import Part, ServingOption, ServingPlan
from meshwright.serving.space import Candidate, Rejected, candidate_of, candidates
from meshwright.serving.static import static_batch
from meshwright.serving.steady import BUSY, Steady, at_rate, batched_prompt_s, decode_s, most_running, prompt_s, steady

__all__ = ["pareto_front", "plan", "predict"]

_PER_DOUBLING = 2
_MOST_LISTED = 50
_MOST_SIMULATED = 8


def plan(request: ServingRequest | None = None, /, **fields: Any) -> ServingPlan:
    """Return the deployments that answer a request, or its fields, best first.

    `plan(model="llama3-70b", cluster="h100:8", input_len=1000, output_len=500, ttft_s=0.5)`; the fields are those of ServingRequest.

    Every worker that holds the model is priced at every load from one request to as many as its cache holds; of disaggregated
    deployments all pairs of workers for prompts and answers with the same weights, as many of the first as the second need. Of each
    deployment the best load that keeps the limits is listed: most new tokens per second; with `objective="latency"` the least time
    of a request; with a target rate the fewest chips that carry it; with a rate of arrivals the shortest requests, of which the best few
    deployments are simulated, so that their times have percentiles.
    """
    if request is not None and fields:
        raise ConfigError(f"plan: give a request or fields ({', '.join(fields)}), not both")
    return _search(request if request is not None else ServingRequest.of(**fields))


def _search(request: ServingRequest) -> ServingPlan:
    rejected: Rejected = Rejected()
    found = candidates(request, rejected)
    priced = [option for option in _priced(request, found) if option is not None]
    able = [option for option in priced if option.requests_per_s >= (request.rate or 0.0)]
    fitting = [option for option in able if _excess(request, option) <= 1.0]
    best = sorted(_best_of_each(request, fitting), key=lambda option: _order(request, option))[:_MOST_LISTED]
    if request.rate is not None and best:
        able = _simulated(request, best[:_MOST_SIMULATED], found)
        best = [option for option in able if _excess(request, option) <= 1.0]
    return ServingPlan(
        options=tuple(best),
        pareto=pareto_front(priced),
        nearest={} if best or not priced else _nearest(request, able) if able else {"requests_per_s": _most_requests(priced)},
        rejected=dict(rejected),
        priced=len(priced),
        notes=_notes(request, found),
        chips=tuple(pool.node.chip.name for pool in request.cluster.pools),
    )


def predict(request: ServingRequest, *, worker: Worker, weights: Weights, cache: Cache, concurrency: int) -> ServingOption:
    """Return what one worker of the first pool does under `concurrency` requests; ConfigError where it can't run or hold them."""
    one = candidate_of(request, request.cluster.pools[0], worker, weights, cache)
    ranks = worker.attention_dp
    most = most_running(one.clock, input_len=request.input_len, output_len=request.output_len, cache_tokens=one.memory.cache_tokens)
    if concurrency > most * ranks:
        raise ConfigError(f"concurrency={concurrency}: the cache has room for {most * ranks} requests of this length at once")
    found = steady(
        one.clock,
        concurrency=max(1.0, concurrency / ranks),
        input_len=request.input_len,
        output_len=request.output_len,
        cached=request.cached_share,
    )
    part = _part("prompts and answers", request, one, 1, found.running)
    times = (found.ttft_s, found.tpot_s, found.e2e_s)
    return _option(request, "aggregated", one, (part,), concurrency=concurrency, times=times, rate=found.requests_per_s)


def _simulated(request: ServingRequest, best: Sequence[ServingOption], found: Sequence[Candidate]) -> list[ServingOption]:
    """The options under arrivals at random, the shortest requests first."""
    seen = []
    for option in best:
        parts = [_candidate(part, option, found) for part in option.parts]
        seen.append(under_arrivals(request, option, parts=parts, transfer_s=_transfer_s(request, parts[-1])))
    return sorted(seen, key=lambda option: _order(request, option))


def _candidate(part: Part, option: ServingOption, found: Sequence[Candidate]) -> Candidate:
    wanted = (part.chip, part.worker, option.weights, option.cache)
    return next(
        one for one in found if (one.pool.node.chip.name, one.prices.worker, one.prices.quantisation.name, one.prices.cache) == wanted
    )


def _transfer_s(request: ServingRequest, answers: Candidate) -> float:
    """Time of the cache of one prompt over the network."""
    sent = request.input_len * cache_bytes_per_token(answers.prices)
    link = answers.pool.node.network_link
    return link.latency_s + sent / (link.bytes_per_s * link.efficiency)


def _priced(request: ServingRequest, found: Sequence[Candidate]) -> Iterator[ServingOption | None]:
    if "aggregated" in request.modes:
        for one in found:
            yield from _aggregated(request, one)
    if "disaggregated" in request.modes:
        for first in found:
            for second in found:
                if _can_pair(first, second):
                    yield from _disaggregated(request, first, second)
    if "static" in request.modes:
        for one in found:
            yield from _static(request, one)


def _can_pair(first: Candidate, second: Candidate) -> bool:
    """Both hold the same weights and cache, and there is room for both."""
    same = first.prices.quantisation == second.prices.quantisation and first.prices.cache == second.prices.cache
    if first.pool is second.pool:
        return same and first.prices.worker.chips + second.prices.worker.chips <= first.pool.num_chips
    return same


def _loads(request: ServingRequest, one: Candidate) -> list[int]:
    """Requests under way per attention rank: powers of sqrt(2) up to what fits."""
    ranks = one.prices.worker.attention_dp
    most = most_running(one.clock, input_len=request.input_len, output_len=request.output_len, cache_tokens=one.memory.cache_tokens)
    if request.concurrency is not None:
        wanted = max(1, ceil(request.concurrency / ranks))
        return [wanted] if wanted <= most else []
    return _ladder(most)


def _ladder(most: int) -> list[int]:
    count = int(_PER_DOUBLING * most.bit_length())
    return sorted({min(most, round(2 ** (i / _PER_DOUBLING))) for i in range(count + 1)}) if most else []


def _at_loads(
    request: ServingRequest, loads: Sequence[int], at: Callable[[int], Sequence[ServingOption | None]]
) -> Iterator[ServingOption | None]:
    """Options at every load; between the last that keeps the limits and the next, halved a few times."""
    kept, broken = 0, 0
    for load in loads:
        options = at(load)
        yield from options
        if _keeps(request, options):
            kept, broken = load, 0
        elif kept and not broken:
            broken = load
    for _ in range(_HALVINGS):
        if broken - kept < 2:
            return
        load = (kept + broken) // 2
        options = at(load)
        yield from options
        kept, broken = (load, broken) if _keeps(request, options) else (kept, load)


_HALVINGS = 3


def _keeps(request: ServingRequest, options: Iterable[ServingOption | None]) -> bool:
    return any(option is not None and _excess(request, option) <= 1.0 for option in options)


def _aggregated(request: ServingRequest, one: Candidate) -> Iterator[ServingOption | None]:
    def at(load: int) -> list[ServingOption | None]:
        found = steady(
            one.clock, concurrency=float(load), input_len=request.input_len, output_len=request.output_len, cached=request.cached_share
        )
        worker = one.prices.worker
        copies = _copies(
            request, {one.pool.node.chip.name: worker.chips}, {one.pool.node.chip.name: one.pool.num_chips}, found.requests_per_s
        )
        if copies is None:
            return [None]
        part = _part("prompts and answers", request, one, copies, found.running)
        option = _option(
            request,
            "aggregated",
            one,
            (part,),
            concurrency=load * worker.attention_dp * copies,
            times=(found.ttft_s, found.tpot_s, found.e2e_s),
            rate=found.requests_per_s * copies,
        )
        return [option]

    return _at_loads(request, _loads(request, one), at)


def _copies(request: ServingRequest, needed: Mapping[str, int], there: Mapping[str, int], rate: float) -> int | None:
    """Copies of a deployment: as many as the chips allow, or as the target rate needs; None where they are too few."""
    most = min(there[name] // chips for name, chips in needed.items() if chips)
    if request.target_rate is None:
        return most or None
    wanted = ceil(request.target_rate / rate - 1e-9)
    return wanted if wanted <= most else None


def _disaggregated(request: ServingRequest, first: Candidate, second: Candidate) -> Iterator[ServingOption | None]:
    """Loads of the workers for answers, and as many workers for prompts as these need, busy for BUSY of the time at most."""
    before = int(request.cached_share * request.input_len)
    new = max(1, request.input_len - before)
    prompt = prompt_s(first.clock, new=new, before=before)
    each = batched_prompt_s(first.clock, new=new, before=before)
    servers = first.prices.worker.attention_dp * first.prices.worker.pp
    context = request.input_len + 0.5 * request.output_len
    transfer = _transfer_s(request, second)
    ranks = second.prices.worker.attention_dp

    def at(load: int) -> list[ServingOption | None]:
        tpot = decode_s(second.clock, max(1.0, load / second.prices.worker.pp), context)
        rate = load * ranks / max((request.output_len - 1) * tpot, tpot)
        options = []
        for answers, prompts in _matched(rate * each / (servers * BUSY), first, second):
            carried = min(answers * rate, prompts * servers / each * BUSY)
            found = at_rate(
                carried,
                prompt=prompt,
                each=each,
                servers=prompts * servers,
                ranks=answers * ranks,
                decode=second.clock,
                context=context,
                output_len=request.output_len,
                transfer_s=transfer,
            )
            options.append(_pools_option(request, first, second, prompts, answers, found))
        return options

    return _at_loads(request, _loads(request, second), at)


def _pools_option(
    request: ServingRequest, first: Candidate, second: Candidate, prompts: int, answers: int, found: Steady
) -> ServingOption | None:
    rate, times = found.requests_per_s, (found.ttft_s, found.tpot_s, found.e2e_s)
    needed: dict[str, int] = {}
    there: dict[str, int] = {}
    for one, count in ((first, prompts), (second, answers)):
        name = one.pool.node.chip.name
        needed[name] = needed.get(name, 0) + count * one.prices.worker.chips
        there[name] = one.pool.num_chips
    copies = _copies(request, needed, there, rate)
    if copies is None:
        return None
    parts = (
        _part("prompts", request, first, prompts * copies, 1.0),
        _part("answers", request, second, answers * copies, found.running),
    )
    return _option(
        request, "disaggregated", second, parts, concurrency=max(1, round(rate * times[2] * copies)), times=times, rate=rate * copies
    )


def _matched(prompts_per_worker: float, first: Candidate, second: Candidate) -> Iterator[tuple[int, int]]:
    """(workers for answers, workers for prompts): of the smallest groups those that match to within a rounding."""
    seen: set[tuple[int, int]] = set()
    for answers in range(1, _MOST_GROUP + 1):
        for prompts in {max(1, ceil(answers * prompts_per_worker)), max(1, int(answers * prompts_per_worker))}:
            a, b = answers * second.prices.worker.chips, prompts * first.prices.worker.chips
            room = a + b <= second.pool.num_chips if first.pool is second.pool else a <= second.pool.num_chips and b <= first.pool.num_chips
            if room and (answers, prompts) not in seen:
                seen.add((answers, prompts))
                yield answers, prompts


_MOST_GROUP = 4


def _static(request: ServingRequest, one: Candidate) -> Iterator[ServingOption | None]:
    most = request.concurrency or one.prices.engine.max_sequences
    for batch in [most] if request.concurrency else _ladder(most):
        found = static_batch(one.prices, batch=batch, input_len=request.input_len, output_len=request.output_len)
        if not found.fits:
            return
        rate = batch / found.latency_s
        name = one.pool.node.chip.name
        copies = _copies(request, {name: one.prices.worker.chips}, {name: one.pool.num_chips}, rate)
        if copies is None:
            yield None
            continue
        part = replace(_part("prompts and answers", request, one, copies, batch), memory_bytes=found.memory_bytes)
        tpot = found.tpot_s if request.output_len > 1 else 0.0
        yield _option(
            request,
            "static",
            one,
            (part,),
            concurrency=batch * copies,
            times=(found.first_token_s, tpot, found.latency_s),
            rate=rate * copies,
        )


def _part(role: str, request: ServingRequest, one: Candidate, count: int, running: float) -> Part:
    held = running * (request.input_len + 0.5 * request.output_len)
    return Part(
        role=role,
        chip=one.pool.node.chip.name,
        worker=one.prices.worker,
        count=count,
        memory_bytes=one.memory.used(min(held, one.memory.cache_tokens)),
        running=running,
    )


def _option(
    request: ServingRequest,
    mode: Mode,
    one: Candidate,
    parts: tuple[Part, ...],
    *,
    concurrency: int,
    times: tuple[float, float, float],
    rate: float,
) -> ServingOption:
    return ServingOption(
        mode=mode,
        weights=one.prices.quantisation.name,
        cache=one.prices.cache,
        parts=parts,
        concurrency=concurrency,
        ttft_s=times[0],
        tpot_s=times[1],
        e2e_s=times[2],
        requests_per_s=rate,
        output_len=request.output_len,
        usd_per_hour=_usd_per_hour(request, parts),
    )


def _usd_per_hour(request: ServingRequest, parts: Iterable[Part]) -> float | None:
    prices = {pool.node.chip.name: request.usd_per_chip_hour or pool.node.chip.usd_per_hour for pool in request.cluster.pools}
    total = 0.0
    for part in parts:
        price = prices[part.chip]
        if price is None:
            return None
        total += price * part.chips
    return total


def _excess(request: ServingRequest, option: ServingOption) -> float:
    """The largest of figure / limit; 0 without limits."""
    limits = ((option.ttft_s, request.ttft_s), (option.tpot_s, request.tpot_s), (option.e2e_s, request.e2e_s))
    return max((value / limit for value, limit in limits if limit is not None), default=0.0)


def _order(request: ServingRequest, option: ServingOption) -> tuple[float, ...]:
    if request.target_rate is not None:
        return (option.chips, option.e2e_s)
    if request.rate is not None:
        return (option.e2e_s, option.chips)
    if request.objective == "latency":
        return (option.e2e_s, -option.tokens_per_s_per_chip)
    return (-option.tokens_per_s, option.e2e_s)


def _best_of_each(request: ServingRequest, options: Iterable[ServingOption]) -> list[ServingOption]:
    """Of every deployment, apart from load and counts of workers, the best."""
    best: dict[tuple[object, ...], ServingOption] = {}
    for option in options:
        key = (option.mode, option.weights, option.cache, tuple((part.role, part.chip, part.worker) for part in option.parts))
        if key not in best or _order(request, option) < _order(request, best[key]):
            best[key] = option
    return list(best.values())


def pareto_front(options: Iterable[ServingOption]) -> tuple[ServingOption, ...]:
    """Return the options that no other beats in both tokens per chip and tokens per user; most per user first."""
    front: list[ServingOption] = []
    for option in sorted(options, key=lambda one: (-one.tokens_per_s_per_user, -one.tokens_per_s_per_chip)):
        if not front or option.tokens_per_s_per_chip > front[-1].tokens_per_s_per_chip:
            front.append(option)
    return tuple(front)


def _nearest(request: ServingRequest, options: Sequence[ServingOption]) -> dict[str, ServingOption]:
    """The least TTFT, TPOT and end-to-end time of all, on the axes that have a limit, and the least excess over all of them."""
    found = {"least excess": min(options, key=lambda one: _excess(request, one))}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        if getattr(request, name) is not None:
            found[name] = min(options, key=lambda one: (getattr(one, name), _excess(request, one)))
    return found


def _most_requests(options: Sequence[ServingOption]) -> ServingOption:
    return max(options, key=lambda one: (one.requests_per_s, -one.e2e_s))


def _notes(request: ServingRequest, found: Sequence[Candidate]) -> tuple[str, ...]:
    notes = dict.fromkeys(one.prices.kernels.kin.note for one in found)
    notes |= {"" if request.weights else _WEIGHTS_NOTE: None}
    return tuple(note for note in notes if note)


_WEIGHTS_NOTE = "weights and cache narrower than 16 bits change answers; --weights and --cache choose them"
