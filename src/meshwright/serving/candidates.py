"""Every worker that holds a model, with its clock and its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.serving.clock import Clock, clock_of
from meshwright.serving.engine import Cache, Weights, Worker, check_worker, quantisation
from meshwright.serving.memory import Memory, cache_bytes_per_token, memory_of
from meshwright.serving.prices import Prices
from meshwright.serving.request import ServingRequest, usual_weights
from meshwright.serving.steady import Steady, most_running, steady
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Pool
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import GIB

__all__ = ["Candidate", "Rejected", "candidate_of", "candidates", "transfer_s", "workers"]

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
        for weights in request.weights or (usual_weights(request.model, pool.node.chip),):
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
    needed = longest + memory.state_tokens
    if memory.cache_tokens < needed:
        short = (memory.used(needed) - memory.limit) / GIB
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


def transfer_s(request: ServingRequest, answers: Candidate) -> float:
    """Return the time of the cache of one prompt, and of its states, over the network."""
    sent = request.input_len * cache_bytes_per_token(answers.prices) + answers.memory.state
    link = answers.pool.node.network_link
    return link.latency_s + sent / (link.bytes_per_s * link.efficiency)
