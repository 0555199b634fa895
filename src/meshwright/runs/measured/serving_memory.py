"""What the memory of a published run says: how full the fullest chip is, and which layouts do not
hold the model."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.runs.measured.cells import UnansweredError
from meshwright.runs.measured.serving_answers import ServingPrediction
from meshwright.runs.measured.serving_rows import ServingCase
from meshwright.serving.engine import Worker, quantisation
from meshwright.serving.memory import Memory, memory_of
from meshwright.serving.prices import Prices
from meshwright.values.hardware.cluster import Pool
from meshwright.values.units import GIB

__all__ = ["cache_room", "held_gib", "memory_of_case", "prices_of", "refused", "require_told"]


def prices_of(case: ServingCase, worker: Worker) -> Prices:
    """Return what prices a worker of the run."""
    return Prices(
        model=case.model,
        pool=Pool(node=case.node, num_chips=worker.chips),
        engine=case.engine,
        worker=worker,
        quantisation=quantisation(case.weights, case.model),
        cache=case.cache,
    )


def memory_of_case(prices: Prices) -> Memory:
    """Return the memory of a worker whose iterations are as long as its engine lets them be."""
    return memory_of(prices, iteration_tokens=prices.engine.chunk_tokens)


def cache_room(case: ServingCase, prices: Prices) -> float:
    """Return tokens that the cache has room for, over those of one request of the run."""
    memory = memory_of_case(prices)
    return memory.cache_tokens / (case.input_len + case.output_len + memory.state_tokens)


def held_gib(case: ServingCase, prices: Prices, running: float) -> float:
    """Return GiB of the fullest chip with so many requests on each attention rank, or as many as
    its cache holds; an engine that fills its share with blocks reports more."""
    memory = memory_of_case(prices)
    held = running * (case.input_len + 0.5 * case.output_len + memory.state_tokens)
    one = case.input_len + case.output_len + memory.state_tokens
    return memory.used(max(min(held, memory.cache_tokens), one)) / GIB


def refused(case: ServingCase, worker: Worker) -> ServingPrediction | None:
    """Return that the run is out of memory, with what it needs, where the chip itself holds no
    request beside the weights; None where it does.

    Formula:  weights + activations + base + one request's cache > usable bytes of the chip
    Source:   `memory_of`; its limit is a default, which people raise; the chip's memory they
              cannot.
    """
    memory = memory_of_case(prices_of(case, worker))
    needed = memory.used(case.input_len + case.output_len + memory.state_tokens)
    if needed <= case.node.chip.usable_bytes:
        return None
    return ServingPrediction(
        source=case.source, row_id=case.row_id, memory_gib=needed / GIB, oom=True
    )


def require_told(case: ServingCase, found: Iterable[ServingPrediction]) -> None:
    """Raise UnansweredError for a row whose layout is none: axes that are all 1, beside more chips,
    and weights that one chip cannot hold."""
    if case.chips > 1 and all(one.oom and one.memory_gib is not None for one in found):
        workers = case.workers if case.pools is None else (case.pools.prefill, case.pools.decode)
        if all(worker.chips == 1 for worker in workers):
            raise UnansweredError(
                f"layout not told: one of the {case.chips} chips does not hold {case.model.name}"
                f" in {case.weights}"
            )
