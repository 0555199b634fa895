"""Every deployment of a model at every load, priced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from meshwright.serving.memory import cache_bytes_per_token
from meshwright.serving.request import Mode, ServingRequest
from meshwright.serving.result import Part, ServingOption, excess
from meshwright.serving.space import Candidate
from meshwright.serving.static import static_batch
from meshwright.serving.steady import (
    BUSY,
    Steady,
    at_rate,
    batched_prompt_s,
    decode_s,
    most_running,
    prompt_s,
    steady,
)

__all__ = ["option_of", "part_of", "priced_options", "transfer_s"]

_PER_DOUBLING = 2


def priced_options(
    request: ServingRequest, found: Sequence[Candidate]
) -> Iterator[ServingOption | None]:
    """Price the candidates in every mode that the request allows, at every load; None where the
    chips are too few."""
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
    same = (
        first.prices.quantisation == second.prices.quantisation
        and first.prices.cache == second.prices.cache
    )
    if first.pool is second.pool:
        return (
            same and first.prices.worker.chips + second.prices.worker.chips <= first.pool.num_chips
        )
    return same


def transfer_s(request: ServingRequest, answers: Candidate) -> float:
    """Return the time of the cache of one prompt over the network."""
    sent = request.input_len * cache_bytes_per_token(answers.prices)
    link = answers.pool.node.network_link
    return link.latency_s + sent / (link.bytes_per_s * link.efficiency)


def _loads(request: ServingRequest, one: Candidate) -> list[int]:
    """Requests under way per attention rank: powers of sqrt(2) up to what fits."""
    ranks = one.prices.worker.attention_dp
    most = most_running(
        one.clock,
        input_len=request.input_len,
        output_len=request.output_len,
        cache_tokens=one.memory.cache_tokens,
    )
    if request.concurrency is not None:
        wanted = max(1, ceil(request.concurrency / ranks))
        return [wanted] if wanted <= most else []
    return _ladder(most)


def _ladder(most: int) -> list[int]:
    count = int(_PER_DOUBLING * most.bit_length())
    return (
        sorted({min(most, round(2 ** (i / _PER_DOUBLING))) for i in range(count + 1)})
        if most
        else []
    )


def _at_loads(
    request: ServingRequest,
    loads: Sequence[int],
    at: Callable[[int], Sequence[ServingOption | None]],
) -> Iterator[ServingOption | None]:
    """Options at every load; between the last that keeps the limits and the next, halved a few
    times."""
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
        found = steady(
            one.clock,
            concurrency=float(load),
            input_len=request.input_len,
            output_len=request.output_len,
            cached=request.cached_share,
        )
        worker = one.prices.worker
        copies = _copies(
            request,
            {one.pool.node.chip.name: worker.chips},
            {one.pool.node.chip.name: one.pool.num_chips},
            found.requests_per_s,
        )
        if copies is None:
            return [None]
        part = part_of("prompts and answers", request, one, copies, found.running)
        option = option_of(
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


def _copies(
    request: ServingRequest, needed: Mapping[str, int], there: Mapping[str, int], rate: float
) -> int | None:
    """Copies of a deployment: as many as the chips allow, or as the target rate needs; None where
    they are too few."""
    most = min(there[name] // chips for name, chips in needed.items() if chips)
    if request.target_rate is None:
        return most or None
    wanted = ceil(request.target_rate / rate - 1e-9)
    return wanted if wanted <= most else None


def _disaggregated(
    request: ServingRequest, first: Candidate, second: Candidate
) -> Iterator[ServingOption | None]:
    """Loads of the workers for answers, and as many workers for prompts as these need, busy for
    BUSY of the time at most."""
    before = int(request.cached_share * request.input_len)
    new = max(1, request.input_len - before)
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
    request: ServingRequest,
    first: Candidate,
    second: Candidate,
    prompts: int,
    answers: int,
    found: Steady,
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
        part_of("prompts", request, first, prompts * copies, 1.0),
        part_of("answers", request, second, answers * copies, found.running),
    )
    return option_of(
        request,
        "disaggregated",
        second,
        parts,
        concurrency=max(1, round(rate * times[2] * copies)),
        times=times,
        rate=rate * copies,
    )


def _matched(
    prompts_per_worker: float, first: Candidate, second: Candidate
) -> Iterator[tuple[int, int]]:
    """(workers for answers, workers for prompts): of the smallest groups those that match to within
    a rounding."""
    seen: set[tuple[int, int]] = set()
    for answers in range(1, _MOST_GROUP + 1):
        for prompts in {
            max(1, ceil(answers * prompts_per_worker)),
            max(1, int(answers * prompts_per_worker)),
        }:
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
    most = request.concurrency or one.prices.engine.max_sequences
    for batch in [most] if request.concurrency else _ladder(most):
        found = static_batch(
            one.prices, batch=batch, input_len=request.input_len, output_len=request.output_len
        )
        if not found.fits:
            return
        rate = batch / found.latency_s
        name = one.pool.node.chip.name
        copies = _copies(request, {name: one.prices.worker.chips}, {name: one.pool.num_chips}, rate)
        if copies is None:
            yield None
            continue
        part = replace(
            part_of("prompts and answers", request, one, copies, batch),
            memory_bytes=found.memory_bytes,
        )
        tpot = found.tpot_s if request.output_len > 1 else 0.0
        yield option_of(
            request,
            "static",
            one,
            (part,),
            concurrency=batch * copies,
            times=(found.first_token_s, tpot, found.latency_s),
            rate=rate * copies,
        )


def part_of(role: str, request: ServingRequest, one: Candidate, count: int, running: float) -> Part:
    """Return `count` workers of a deployment, with the memory of so many running requests on each
    attention rank."""
    held = running * (request.input_len + 0.5 * request.output_len)
    return Part(
        role=role,
        chip=one.pool.node.chip.name,
        worker=one.prices.worker,
        count=count,
        memory_bytes=one.memory.used(min(held, one.memory.cache_tokens)),
        running=running,
    )


def option_of(
    request: ServingRequest,
    mode: Mode,
    one: Candidate,
    parts: tuple[Part, ...],
    *,
    concurrency: int,
    times: tuple[float, float, float],
    rate: float,
) -> ServingOption:
    """Return a deployment at a load; `times` are TTFT, TPOT and end to end, in seconds."""
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
