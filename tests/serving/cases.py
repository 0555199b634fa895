from __future__ import annotations

from dataclasses import replace

from meshwright.serving.clock import Clock, clock_of
from meshwright.serving.engine import Cache, Engine, Worker, find_engine, quantisation
from meshwright.serving.prices import Prices
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.cluster import Pool
from meshwright.values.models.catalogue import find_model


def prices(
    model: str = "llama3.1-70b",
    *,
    chip: str = "h100",
    worker: Worker | None = None,
    weights: str = "fp8",
    cache: Cache = "bf16",
    engine: str | Engine = "vllm",
) -> Prices:
    worker = worker or Worker(tp=4)
    spec = find_model(model)
    return Prices(
        model=spec,
        pool=Pool(node=default_node(chip), num_chips=worker.chips),
        engine=find_engine(engine) if isinstance(engine, str) else engine,
        worker=worker,
        quantisation=quantisation(weights, spec),
        cache=cache,
    )


def clock(priced: Prices | None = None) -> Clock:
    return clock_of(priced or prices(), most_tokens=8192 + 512, most_context=16384)


def plain_engine(**changes: object) -> Engine:
    """An engine without any cost of its own."""
    nothing = dict.fromkeys(
        (
            "kernel_s",
            "launch_s",
            "host_s",
            "host_per_sequence_s",
            "request_s",
            "handover_s",
            "token_s",
        ),
        0.0,
    )
    return replace(find_engine("vllm"), **(nothing | {"overlap": False} | changes))  # type: ignore[arg-type]
