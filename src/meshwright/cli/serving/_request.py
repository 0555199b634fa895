"""From flags to a serving request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from meshwright.models.spec import ModelSpec
    from meshwright.serving.clock import Speculation
    from meshwright.serving.deployment import Worker
    from meshwright.serving.engine import Engine
    from meshwright.serving.request import ServingRequest

__all__ = ["model_of", "request_of", "worker_of"]


def request_of(
    *,
    model: str | None,
    hf: Path | None,
    cluster: str | None,
    gpus_per_node: int | None,
    engine: str,
    chunk: int | None,
    limits_ms: Mapping[str, float | None],
    mode: str,
    weights: str | None,
    cache: str | None,
    prefix_hits: float,
    speculate: str | None,
    usd_per_hour: float | None,
    **fields: Any,
) -> ServingRequest:
    """Return the request that flags make; ConfigError where one of them is wrong."""
    from meshwright.errors import ConfigError
    from meshwright.local import cluster_from_flag
    from meshwright.serving.request import ServingRequest

    if cluster is None:
        raise ConfigError("give --cluster, such as h100:8")
    limits: dict[str, Any] = {
        name: None if value is None else value / 1e3 for name, value in limits_ms.items()
    }
    return ServingRequest(
        model=model_of(model, hf),
        cluster=cluster_from_flag(cluster, gpus_per_node=gpus_per_node),
        engine=_engine(engine, chunk),
        modes=cast("Any", _words(mode)),
        weights=cast("Any", None if weights is None else _words(weights)),
        cache=cast("Any", None if cache is None else _words(cache)),
        cached_share=prefix_hits,
        speculation=_speculation(speculate),
        usd_per_chip_hour=usd_per_hour,
        **limits,
        **fields,
    )


def model_of(name: str | None, hf: Path | None) -> ModelSpec:
    """Return the named model, or the one of a config.json."""
    from meshwright.errors import ConfigError
    from meshwright.models.by_hand import named_model
    from meshwright.models.huggingface import read_hf_config

    if (name is None) == (hf is None):
        raise ConfigError("give a model's name, or --hf config.json, and not both")
    return read_hf_config(hf).spec if hf is not None else named_model(name or "")


def _engine(name: str, chunk: int | None) -> Engine:
    from meshwright.errors import ConfigError
    from meshwright.serving.engine import find_engine

    engine = find_engine(name)
    if chunk is None:
        return engine
    if not engine.chunk_tokens:
        raise ConfigError(f"--chunk {chunk}: {engine.name} runs whole prompts")
    if chunk < 1:
        raise ConfigError(f"--chunk {chunk}: expected 1 token or more")
    return replace(engine, chunk_tokens=chunk)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _speculation(text: str | None) -> Speculation | None:
    from meshwright.errors import ConfigError
    from meshwright.serving.clock import Speculation

    if text is None:
        return None
    drafted, _, accepted = text.partition(",")
    try:
        return Speculation(drafted=int(drafted), accepted=float(accepted))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"--speculate {text!r}: expected tokens drafted and how many are right, such as 3,1.4"
        ) from None


def worker_of(text: str) -> Worker:
    """Read `tp=4,pp=2`."""
    from meshwright.errors import ConfigError, UnknownNameError
    from meshwright.serving.deployment import Worker

    axes: dict[str, int] = {}
    for word in _words(text):
        name, _, size = (part.strip() for part in word.partition("="))
        if name not in _AXES:
            raise UnknownNameError("axis", name, _AXES)
        if not size.isdigit():
            raise ConfigError(f"--layout {text!r}: {name}={size}: expected a whole number")
        axes[name] = int(size)
    return Worker(**axes)


_AXES = ("tp", "pp", "ep", "attention_dp")
