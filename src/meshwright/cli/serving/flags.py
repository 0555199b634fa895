"""From flags to a serving request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from meshwright.cli.options import Given, fields_of, option
from meshwright.platforms.given import cluster_from_flag, read_hf_config
from meshwright.runs.loads.figures import Limits
from meshwright.runs.loads.load import Lengths, Load, closed_loop, poisson, read_trace
from meshwright.search.request import PlanRequest
from meshwright.serving.engine import Engine, Worker, find_engine
from meshwright.serving.request import ServingRequest, parse_words
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "AXES",
    "CHUNK",
    "ENGINE",
    "PLACE",
    "limits_of",
    "loads_of",
    "model_of",
    "numbers",
    "request_of",
    "worker_of",
]


PLACE: Any = fields_of(
    PlanRequest, "model", "cluster", cluster="Chips, such as h100:8, a YAML file, or local."
)
ENGINE: Any = option("vllm", "vllm, sglang, trtllm, fastertransformer or transformers.")
CHUNK: Any = option(None, "Tokens of prompts in one iteration [default: the engine's].")


def loads_of(
    *,
    lengths: Lengths,
    concurrency: str | None,
    rate: str | None,
    trace: Path | None,
    requests: int | None,
    default: tuple[int, ...],
) -> tuple[Load, ...]:
    """Return the loads of flags: clients, rates or a trace; ConfigError for two of them."""
    if sum(given is not None for given in (concurrency, rate, trace)) > 1:
        raise ConfigError("give one of --concurrency, --rate and --trace")
    if trace is not None:
        if requests is not None:
            raise ConfigError("--requests has no effect with --trace, which names every request")
        return (read_trace(trace, seed=lengths.seed),)
    if rate is not None:
        return tuple(
            poisson(value, lengths, requests=requests) for value in numbers("--rate", rate)
        )
    clients = (
        [float(count) for count in default]
        if concurrency is None
        else numbers("--concurrency", concurrency)
    )
    if fraction := next((value for value in clients if value != int(value)), None):
        raise ConfigError(f"--concurrency {fraction:g}: expected whole numbers of clients")
    return tuple(closed_loop(int(count), lengths, requests=requests) for count in clients)


def numbers(flag: str, text: str) -> list[float]:
    """Read `1,2,4`; ConfigError where one is no positive number, or is there twice."""
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < value < float("inf") for value in found):
        raise ConfigError(f"{flag} {text}: expected positive numbers such as 1,2,4")
    if len(set(found)) < len(found):
        raise ConfigError(f"{flag} {text}: a number occurs twice")
    return found


def limits_of(*, ttft_ms: float | None, tpot_ms: float | None, e2e_ms: float | None) -> Limits:
    """Return limits in seconds; ConfigError for one that is no positive number."""
    given = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms}
    for name, value in given.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"--{name} {value:g}: expected a positive number of milliseconds")
    return Limits(
        **{f"{name}_s": None if value is None else value / 1e3 for name, value in given.items()}
    )


def request_of(
    place: Given,
    *,
    hf: Path | None,
    gpus_per_node: int | None,
    engine: str,
    chunk: int | None,
    **fields: Any,
) -> ServingRequest:
    """Return the request that flags make; ConfigError where one of them is wrong."""
    if "cluster" not in place:
        raise ConfigError("give --cluster, such as h100:8")
    return ServingRequest(
        model=model_of(place.get("model"), hf),
        cluster=cluster_from_flag(place["cluster"], gpus_per_node=gpus_per_node),
        engine=_engine(engine, chunk),
        **fields,
    )


def model_of(name: str | None, hf: Path | None) -> ModelSpec:
    """Return the named model, or the one of a config.json."""
    if (name is None) == (hf is None):
        raise ConfigError("give a model's name, or --hf config.json, and not both")
    return read_hf_config(hf).spec if hf is not None else named_model(name or "")


def _engine(name: str, chunk: int | None) -> Engine:
    engine = find_engine(name)
    if chunk is None:
        return engine
    if not engine.chunk_tokens:
        raise ConfigError(f"--chunk {chunk}: {engine.name} runs whole prompts")
    if chunk < 1:
        raise ConfigError(f"--chunk {chunk}: expected 1 token or more")
    return replace(engine, chunk_tokens=chunk)


def worker_of(text: str) -> Worker:
    """Read `tp=4,pp=2`."""
    sizes: dict[str, int] = {}
    for word in parse_words(text):
        name, _, size = (part.strip() for part in word.partition("="))
        if name not in AXES:
            raise UnknownNameError("axis", name, AXES)
        if not size.isdigit():
            raise ConfigError(f"--layout {text!r}: {name}={size}: expected a whole number")
        sizes[name] = int(size)
    return Worker(**sizes)


AXES = ("tp", "pp", "ep", "attention_dp")
"""Of a worker."""
