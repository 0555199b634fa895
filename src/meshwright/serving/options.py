"""Every deployment of workers in one pool at every load, priced, and what a deployment is made
of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from meshwright.serving.candidates import Candidate
from meshwright.serving.request import Mode, ServingRequest
from meshwright.serving.result import Part, ServingOption, excess
from meshwright.serving.static import static_batch
from meshwright.serving.steady import Steady

__all__ = ["HALVINGS", "loads_of", "of_one_pool", "one_pool", "option_of", "part_of"]

_PER_DOUBLING = 2


def one_pool(request: ServingRequest, found: Sequence[Candidate]) -> Iterator[ServingOption | None]:
    """Price the candidates, each as one pool, at every load; None where chips are too few."""
    for one in found if "aggregated" in request.modes else ():
        yield from _aggregated(request, one)
    for one in found if "static" in request.modes else ():
        yield from _static(request, one)


def loads_of(request: ServingRequest, one: Candidate) -> list[int]:
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
    for _ in range(HALVINGS):
        if broken - kept < 2:
            return
        load = (kept + broken) // 2
        options = at(load)
        yield from options
        kept, broken = (load, broken) if _keeps(request, options) else (kept, load)


HALVINGS = 3


def _keeps(request: ServingRequest, options: Iterable[ServingOption | None]) -> bool:
    return any(option is not None and excess(request, option) <= 1.0 for option in options)


def _aggregated(request: ServingRequest, one: Candidate) -> Iterator[ServingOption | None]:
    def at(load: int) -> list[ServingOption | None]:
        found = one.steady(request, concurrency=float(load))
        copies = _copies(request, one, found.requests_per_s)
        if copies is None:
            return [None]
        under_way = load * one.prices.worker.attention_dp * copies
        return [of_one_pool(request, "aggregated", one, copies, found, concurrency=under_way)]

    return _at_loads(request, loads_of(request, one), at)


def _copies(request: ServingRequest, one: Candidate, rate: float) -> int | None:
    """Copies that the chips allow or the target rate needs; None where they are too few."""
    most = one.pool.num_chips // one.prices.worker.chips
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
    part = part_of("prompts and answers", request, one, copies, found.running)
    rate = found.requests_per_s * copies
    return option_of(request, mode, one, (part,), replace(found, requests_per_s=rate), concurrency)


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
        copies = _copies(request, one, seen.requests_per_s)
        if copies is None:
            yield None
            continue
        option = of_one_pool(request, "static", one, copies, seen, concurrency=batch * copies)
        held = replace(option.parts[0], memory_bytes=found.memory_bytes)
        yield replace(option, parts=(held,))


def part_of(role: str, request: ServingRequest, one: Candidate, count: int, running: float) -> Part:
    """Return `count` workers of a deployment, with the memory of so many running requests on each
    attention rank."""
    each = request.input_len + 0.5 * request.output_len + one.memory.state_tokens
    held = running * each
    return Part(
        role=role,
        chip=one.chip,
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
    found: Steady,
    concurrency: int,
) -> ServingOption:
    """Return a deployment whose requests see what was found; `one` runs their answers."""
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
