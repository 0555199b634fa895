"""Every worker that holds a model, and every deployment of them at every load, priced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from meshwright.serving.clock import Clock, clock_of
from meshwright.serving.engine import Cache, Weights, Worker, check_worker, quantisation
from meshwright.serving.memory import Memory, cache_bytes_per_token, memory_of
from meshwright.serving.prices import Prices
from meshwright.serving.request import Mode, ServingRequest, usual_weights
from meshwright.serving.result import Part, ServingOption, excess
from meshwright.serving.static import static_batch
from meshwright.serving.steady import (
    BUSY,
    MATCHED,
    Steady,
    at_rate,
    batched_prompt_s,
    cut,
    decode_s,
    most_running,
    prompt_s,
    steady,
)
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Pool
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import GIB

__all__ = [
    "Candidate",
    "Rejected",
    "candidate_of",
    "candidates",
    "of_one_pool",
    "priced_options",
    "transfer_s",
    "workers",
]

Rejected = Counter[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A worker that holds the model, with its clock."""

    pool: Pool
    prices: Prices
    clock: Clock
    memory: Memory

    @property
    def chip(self) -> str:
        return self.pool.node.chip.name

    def most_running(self, request: ServingRequest) -> int:
        """Return how many of the requests run at once on an attention rank."""
        return most_running(
            self.clock,
            input_len=request.input_len,
            output_len=request.output_len,
            cache_tokens=self.memory.cache_tokens,
        )

    def steady(self, request: ServingRequest, *, concurrency: float) -> Steady:
        """Return what such requests see, so many of them on each attention rank."""
        return steady(
            self.clock,
            concurrency=concurrency,
            input_len=request.input_len,
            output_len=request.output_len,
            cached=request.cached_share,
        )


def workers(model: ModelSpec, pool: Pool) -> Iterator[Worker]:
    """Workers of a pool: tensor parallelism inside a fast domain, pipelines of such groups, and of
    experts each on one chip or cut, under one attention or one on every chip."""
    size = 1
    while size <= min(pool.num_chips, pool.node.domain_size):
        pp = 1
        while size * pp <= pool.num_chips and pp <= _MOST_STAGES:
            yield Worker(tp=size, pp=pp)
            if model.moe is not None and size > 1:
                yield Worker(tp=size, pp=pp, ep=size)
                yield Worker(tp=1, pp=pp, ep=size, attention_dp=size)
            pp *= 2
        size *= 2


_MOST_STAGES = 8


def candidates(request: ServingRequest, rejected: Rejected) -> list[Candidate]:
    """Return workers that hold weights and one request; others are counted by reason."""
    found: list[Candidate] = []
    for pool in request.cluster.pools:
        for weights in request.weights or usual_weights(request.model, pool.node.chip):
            for worker in workers(request.model, pool):
                found += _caches(request, pool, worker, weights, rejected)
    return _without_needless_pipelines(found)


def _caches(
    request: ServingRequest, pool: Pool, worker: Worker, weights: Weights, rejected: Rejected
) -> Iterator[Candidate]:
    for cache in request.cache or _usual_caches(pool, weights):
        try:
            yield candidate_of(request, pool, worker, weights, cache)
        except ConfigError as error:
            rejected[str(error).split(";")[0]] += 1


def _usual_caches(pool: Pool, weights: Weights) -> tuple[Cache, ...]:
    """As wide as the activations; with narrow weights fp8 where the chip has it, too."""
    wide: Cache = "fp16" if weights == "fp16" else "bf16"
    narrow = weights not in ("bf16", "fp16", "fp32")
    return (wide, "fp8") if pool.node.chip.fp8_flops_per_s and narrow else (wide,)


def candidate_of(
    request: ServingRequest, pool: Pool, worker: Worker, weights: Weights, cache: Cache
) -> Candidate:
    """Return a worker with its clock; ConfigError where it can't hold one request."""
    check_worker(worker, request.model)
    engine = request.engine
    kept = quantisation(weights, request.model)
    prices = Prices(
        model=request.model, pool=pool, engine=engine, worker=worker, quantisation=kept, cache=cache
    )
    longest = request.input_len + request.output_len
    chunk = engine.chunk_tokens or min(request.input_len, _WHOLE)
    memory = memory_of(prices, iteration_tokens=chunk)
    if memory.cache_tokens < longest:
        short = (memory.used(longest) - memory.limit) / GIB
        raise ConfigError(
            f"{worker.name}, {weights} weights, {cache} cache on {pool.node.chip.name}: {short:.1f}"
            " GiB short of one request"
        )
    most, guess = chunk + engine.max_sequences, request.speculation
    clock = clock_of(prices, most_tokens=most, most_context=longest, speculation=guess)
    return Candidate(pool=pool, prices=prices, clock=clock, memory=memory)


_WHOLE = 8192


def _without_needless_pipelines(found: list[Candidate]) -> list[Candidate]:
    """Pipelines only lengthen a token's way where fewer stages hold the model: of each kind those
    with up to twice the fewest stages."""
    fewest: dict[tuple[object, ...], int] = {}
    for one in found:
        key = _kind(one)
        fewest[key] = min(fewest.get(key, one.prices.worker.pp), one.prices.worker.pp)
    return [one for one in found if one.prices.worker.pp <= 2 * fewest[_kind(one)]]


def _kind(one: Candidate) -> tuple[object, ...]:
    worker, name = one.prices.worker, one.prices.quantisation.name
    return one.pool, worker.tp, worker.ep, worker.attention_dp, name, one.prices.cache


_PER_DOUBLING = 2


def priced_options(
    request: ServingRequest, found: Sequence[Candidate]
) -> Iterator[ServingOption | None]:
    """Price the candidates in every mode and at every load; None where chips are too few."""
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
    a, b = first.prices, second.prices
    if (a.quantisation, a.cache) != (b.quantisation, b.cache):
        return False
    return first.pool is not second.pool or a.worker.chips + b.worker.chips <= first.pool.num_chips


def transfer_s(request: ServingRequest, answers: Candidate) -> float:
    """Return the time of the cache of one prompt over the network."""
    sent = request.input_len * cache_bytes_per_token(answers.prices)
    link = answers.pool.node.network_link
    return link.latency_s + sent / (link.bytes_per_s * link.efficiency)


def _loads(request: ServingRequest, one: Candidate) -> list[int]:
    """Requests under way per attention rank: powers of sqrt(2) up to what fits."""
    most = one.most_running(request)
    if request.concurrency is None:
        return _ladder(most)
    wanted = max(1, ceil(request.concurrency / one.prices.worker.attention_dp))
    return [wanted] if wanted <= most else []


def _ladder(most: int) -> list[int]:
    steps = range(int(_PER_DOUBLING * most.bit_length()) + 1) if most else ()
    return sorted({min(most, round(2 ** (i / _PER_DOUBLING))) for i in steps})


def _at_loads(
    request: ServingRequest,
    loads: Sequence[int],
    at: Callable[[int], Sequence[ServingOption | None]],
) -> Iterator[ServingOption | None]:
    """Options at every load; from the last that keeps the limits to the next, halved."""
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
    return any(option is not None and excess(request, option) <= 1.0 for option in options)


def _aggregated(request: ServingRequest, one: Candidate) -> Iterator[ServingOption | None]:
    def at(load: int) -> list[ServingOption | None]:
        found = one.steady(request, concurrency=float(load))
        copies = _copies(request, ((one, 1),), found.requests_per_s)
        if copies is None:
            return [None]
        under_way = load * one.prices.worker.attention_dp * copies
        return [of_one_pool(request, "aggregated", one, copies, found, concurrency=under_way)]

    return _at_loads(request, _loads(request, one), at)


def _copies(
    request: ServingRequest, used: Iterable[tuple[Candidate, int]], rate: float
) -> int | None:
    """Copies that the chips allow or the target rate needs; None where they are too few."""
    needed: Counter[str] = Counter()
    there: dict[str, int] = {}
    for one, count in used:
        needed[one.chip] += count * one.prices.worker.chips
        there[one.chip] = one.pool.num_chips
    most = min(there[name] // chips for name, chips in needed.items() if chips)
    if request.target_rate is None:
        return most or None
    wanted = ceil(request.target_rate / rate - 1e-9)
    return wanted if wanted <= most else None


def of_one_pool(
    request: ServingRequest,
    mode: Mode,
    one: Candidate,
    copies: int,
    found: Steady,
    *,
    concurrency: int,
) -> ServingOption:
    """Return copies of one worker for prompts and answers, each of which does what was found."""
    part = _part("prompts and answers", request, one, copies, found.running)
    rate = found.requests_per_s * copies
    return _option(request, mode, one, (part,), replace(found, requests_per_s=rate), concurrency)


def _disaggregated(
    request: ServingRequest, first: Candidate, second: Candidate
) -> Iterator[ServingOption | None]:
    """Loads of workers for answers, and the workers for prompts, BUSY at most, that they need."""
    new, before = cut(request.input_len, request.cached_share)
    prompt = prompt_s(first.clock, new=new, before=before)
    each = batched_prompt_s(first.clock, new=new, before=before)
    servers = first.prices.worker.attention_dp * first.prices.worker.pp
    context = request.input_len + 0.5 * request.output_len
    transfer = transfer_s(request, second)
    ranks = second.prices.worker.attention_dp

    def at(load: int) -> list[ServingOption | None]:
        tpot = decode_s(second.clock, max(1.0, load / second.prices.worker.pp), context)
        rate = load * ranks / max((request.output_len - 1) * tpot, tpot)
        options = []
        for answers, prompts in _matched(rate * MATCHED * each / (servers * BUSY), first, second):
            carried = min(answers * rate * MATCHED, prompts * servers / each * BUSY)
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
    request: ServingRequest,
    first: Candidate,
    second: Candidate,
    prompts: int,
    answers: int,
    found: Steady,
) -> ServingOption | None:
    rate = found.requests_per_s
    copies = _copies(request, ((first, prompts), (second, answers)), rate)
    if copies is None:
        return None
    parts = (
        _part("prompts", request, first, prompts * copies, 1.0),
        _part("answers", request, second, answers * copies, found.running),
    )
    under_way = max(1, round(rate * found.e2e_s * copies))
    whole = replace(found, requests_per_s=rate * copies)
    return _option(request, "disaggregated", second, parts, whole, under_way)


def _matched(
    prompts_per_worker: float, first: Candidate, second: Candidate
) -> Iterator[tuple[int, int]]:
    """(workers for answers, for prompts) of the smallest groups that match but for rounding."""
    seen: set[tuple[int, int]] = set()
    for answers in range(1, _MOST_GROUP + 1):
        wanted = answers * prompts_per_worker
        for prompts in {max(1, ceil(wanted)), max(1, int(wanted))}:
            a, b = answers * second.prices.worker.chips, prompts * first.prices.worker.chips
            room = (
                a + b <= second.pool.num_chips
                if first.pool is second.pool
                else a <= second.pool.num_chips and b <= first.pool.num_chips
            )
            if room and (answers, prompts) not in seen:
                seen.add((answers, prompts))
                yield answers, prompts


_MOST_GROUP = 4


def _static(request: ServingRequest, one: Candidate) -> Iterator[ServingOption | None]:
    lengths = {"input_len": request.input_len, "output_len": request.output_len}
    most = request.concurrency or one.prices.engine.max_sequences
    for batch in [most] if request.concurrency else _ladder(most):
        found = static_batch(one.prices, batch=batch, **lengths)
        if not found.fits:
            return
        seen = Steady(
            ttft_s=found.first_token_s,
            tpot_s=found.tpot_s if request.output_len > 1 else 0.0,
            e2e_s=found.latency_s,
            requests_per_s=batch / found.latency_s,
            running=batch,
        )
        copies = _copies(request, ((one, 1),), seen.requests_per_s)
        if copies is None:
            yield None
            continue
        option = of_one_pool(request, "static", one, copies, seen, concurrency=batch * copies)
        held = replace(option.parts[0], memory_bytes=found.memory_bytes)
        yield replace(option, parts=(held,))


def _part(role: str, request: ServingRequest, one: Candidate, count: int, running: float) -> Part:
    """Return `count` workers of a deployment, with the memory of so many running requests on each
    attention rank."""
    held = running * (request.input_len + 0.5 * request.output_len)
    return Part(
        role=role,
        chip=one.chip,
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
    found: Steady,
    concurrency: int,
) -> ServingOption:
    return ServingOption(
        mode=mode,
        weights=one.prices.quantisation.name,
        cache=one.prices.cache,
        parts=parts,
        concurrency=concurrency,
        ttft_s=found.ttft_s,
        tpot_s=found.tpot_s,
        e2e_s=found.e2e_s,
        requests_per_s=found.requests_per_s,
        output_len=request.output_len,
        usd_per_hour=_usd_per_hour(request, parts),
    )


def _usd_per_hour(request: ServingRequest, parts: Iterable[Part]) -> float | None:
    prices = {
        pool.node.chip.name: request.usd_per_chip_hour or pool.node.chip.usd_per_hour
        for pool in request.cluster.pools
    }
    total = 0.0
    for part in parts:
        price = prices[part.chip]
        if price is None:
            return None
        total += price * part.chips
    return total
