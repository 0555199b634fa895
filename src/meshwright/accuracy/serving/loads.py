"""How published benchmarks load a server: `presets/serving_loads.csv`."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

import numpy as np

from meshwright.serving.engine import Engine
from meshwright.serving.simulate import Requests

__all__ = ["Load", "load_of", "requests_of"]

_MOST = 3000
"""Requests that tell a mean well enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How lengths spread, and how long a run lasts."""

    shortest: float
    """Lengths are drawn evenly from between this share of the nominal one and all of it."""
    rounds: int
    """Requests of a run per client."""
    sglang_poll_steps: tuple[tuple[int, int], ...]
    """(clients from which on, `Engine.poll_steps` that SGLang is started with), clients rising."""

    trtllm_balance_steps: int
    """`Engine.balance_steps` that TensorRT-LLM is started with."""
    vllm_mxfp4_kernels: Literal["own", "trtllm"]
    """`Engine.mxfp4_kernels` that vLLM is started with."""
    vllm_overlap: bool
    """`Engine.overlap` of the benchmark's vLLM."""
    client_gap_s: float
    """Time between the starts of two clients."""
    front: Literal["engine", "router"]
    """Who turns text into tokens: the engine's own front process, one request after the other, or a router with many threads before it."""

    def engine_of(self, engine: Engine, clients: float) -> Engine:
        """Return the engine as the benchmark starts it for so many clients."""
        if self.front == "router":
            engine = replace(engine, token_s=0.0)
        if engine.name == "sglang":
            return replace(engine, poll_steps=[steps for least, steps in self.sglang_poll_steps if clients >= least][-1])
        if engine.name == "vllm":
            return replace(engine, mxfp4_kernels=self.vllm_mxfp4_kernels, overlap=self.vllm_overlap)
        return replace(engine, balance_steps=self.trtllm_balance_steps) if engine.name == "trtllm" else engine


def load_of(input_len: int, output_len: int) -> Load:
    """Return the load of the benchmark that runs these lengths."""
    for row in _rows():
        if row["input_len"] in ("", str(input_len)) and row["output_len"] in ("", str(output_len)):
            return Load(
                shortest=float(row["shortest"]),
                rounds=int(row["rounds"]),
                sglang_poll_steps=_steps(row["sglang_poll_steps"]),
                trtllm_balance_steps=int(row["trtllm_balance_steps"]),
                vllm_mxfp4_kernels=cast("Any", row["vllm_mxfp4_kernels"]),
                vllm_overlap=row["vllm_overlap"] == "yes",
                client_gap_s=float(row["client_gap_s"]),
                front=cast("Any", row["front"]),
            )
    raise AssertionError("the last row of serving_loads.csv matches everything")


def _steps(cell: str) -> tuple[tuple[int, int], ...]:
    pairs = (word.partition(":") for word in cell.split())
    return tuple((int(least), int(steps)) for least, _, steps in pairs)


@cache
def _rows() -> tuple[dict[str, str], ...]:
    text = resources.files("meshwright").joinpath("presets", "serving_loads.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def requests_of(load: Load, *, input_len: int, output_len: int, clients: int) -> Requests:
    """Return the requests of a closed loop; a thousand clients run fewer rounds."""
    count = clients * load.rounds
    if count > _MOST:
        count = max(_MOST, 4 * clients)
    lengths = np.random.default_rng(_SEED)
    prompts, outputs = (length * lengths.uniform(load.shortest, 1.0, count) for length in (input_len, output_len))
    return Requests(
        prompts=np.maximum(prompts.round(), 1).astype(int).tolist(), outputs=np.maximum(outputs.round(), 1).astype(int).tolist()
    )


_SEED = 0
"""One draw for all predictions: requests that end together wait for one another, as in the benchmark, which an even spread would hide."""
