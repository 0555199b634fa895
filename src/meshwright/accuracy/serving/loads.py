"""How published benchmarks load a server: `presets/serving_loads.csv`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, cast

import numpy as np

from meshwright.serving.kernels import Floats
from meshwright.serving.simulate import Requests

__all__ = ["Load", "load_of", "mean_of", "queued", "requests_of"]

_MOST = 3000
"""Requests that tell a mean well enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """How lengths spread, and how long a run lasts."""

    name: str
    """Of the benchmark; `presets/serving_recipes.csv` says how it starts servers."""
    shortest: float
    """Lengths are drawn evenly from between this share of the nominal one and all of it."""
    rounds: int
    """Requests of a run per client."""
    client_gap_s: float
    """Time between the starts of two clients."""
    front: Literal["engine", "router"]
    """Who turns text into tokens: the engine's own front process, one request after the other, or a
    router with many threads before it."""


def load_of(input_len: int, output_len: int) -> Load:
    """Return the load of the benchmark that runs these lengths."""
    for row in _rows("serving_loads.csv"):
        if row["input_len"] in ("", str(input_len)) and row["output_len"] in ("", str(output_len)):
            return Load(
                name=row["name"],
                shortest=float(row["shortest"]),
                rounds=int(row["rounds"]),
                client_gap_s=float(row["client_gap_s"]),
                front=cast("Any", row["front"]),
            )
    raise AssertionError("the last row of serving_loads.csv matches everything")


@cache
def _rows(file: str) -> tuple[dict[str, str], ...]:
    text = resources.files("meshwright").joinpath("presets", file).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def queued(input_len: int, output_len: int) -> int | None:
    """Return how many requests of these lengths a published run at maximum load queues at once;
    None where it is untold."""
    lengths, rows = (str(input_len), str(output_len)), _rows("serving_queues.csv")
    return next(
        (int(row["requests"]) for row in rows if (row["input_len"], row["output_len"]) == lengths),
        None,
    )


def requests_of(load: Load, *, input_len: int, output_len: int, clients: int) -> Requests:
    """Return the requests of a closed loop; a thousand clients run fewer rounds, which `mean_of`
    makes good."""
    count = clients * load.rounds
    if count > _MOST:
        count = min(count, max(_MOST, _LEAST_ROUNDS * clients))
    lengths = np.random.default_rng(_SEED)
    prompts, outputs = (
        length * lengths.uniform(load.shortest, 1.0, count) for length in (input_len, output_len)
    )
    return Requests(
        prompts=np.maximum(prompts.round(), 1).astype(int).tolist(),
        outputs=np.maximum(outputs.round(), 1).astype(int).tolist(),
    )


def mean_of(figures: Floats, load: Load, *, clients: int) -> float:
    """Return the mean over the requests of a whole run, where fewer were simulated.

    The first round, whose clients all start at once, and the last, which ends with fewer and fewer,
    count once, those between as often as the run has them. Requests without the figure are left
    out.
    """
    count = len(figures)
    weights = np.ones(count)
    between = count - 2 * clients
    if between > 0:
        weights[clients : count - clients] = (load.rounds - 2) * clients / between
    told = np.isfinite(figures)
    return float((figures[told] * weights[told]).sum() / weights[told].sum())


_LEAST_ROUNDS = 4
_SEED = 0
"""One draw for all predictions: requests that end together wait for one another, as in the
benchmark, which an even spread would hide."""
