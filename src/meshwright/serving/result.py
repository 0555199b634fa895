"""What a serving search answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from meshwright.serving.engine import Cache, Weights, Worker
from meshwright.serving.request import Mode, ServingRequest
from meshwright.values.units import GIB

__all__ = [
    "DEFINITIONS",
    "Figures",
    "Part",
    "ServingOption",
    "ServingPlan",
    "ServingTie",
    "best_of_each",
    "excess",
    "most_requests",
    "nearest_of",
    "order",
    "pareto_front",
]

DEFINITIONS = {
    "ttft": "from sending a request to its first token, mean",
    "tpot": "(finish - first token) / (output tokens - 1), mean over requests",
    "e2e": "from sending a request to its last token, mean",
    "throughput": "new tokens per second, prompts not counted, over the chips of the deployment",
    "static tpot": "(latency of the batch - first token) / (output tokens - 1)",
}
"""By figure: what it is here, as every table and JSON object says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Workers of one kind in a deployment."""

    role: str
    """`prompts and answers`, `prompts` or `answers`."""
    chip: str
    worker: Worker
    count: int
    memory_bytes: float
    """Of the fullest chip at this load."""
    running: float
    """Sequences that run at once per attention rank; of prompts: prompts under way."""

    @property
    def chips(self) -> int:
        return self.count * self.worker.chips

    def to_dict(self) -> dict[str, Any]:
        axes = {name: getattr(self.worker, name) for name in ("tp", "pp", "ep", "attention_dp")}
        return {
            "role": self.role,
            "chip": self.chip,
            "layout": axes,
            "workers": self.count,
            "chips": self.chips,
            "running_per_rank": self.running,
            "peak_memory_gib": self.memory_bytes / GIB,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingOption:
    """One deployment under one load."""

    mode: Mode
    weights: Weights
    cache: Cache
    parts: tuple[Part, ...]
    concurrency: int
    """Requests under way in the whole deployment; of static batches their sequences."""
    ttft_s: float
    tpot_s: float
    e2e_s: float
    requests_per_s: float
    output_len: int
    usd_per_hour: float | None
    """Of the chips in use; None where a price is not known."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The 80 % interval by the name of the figure in `to_dict`; empty of what is not listed."""
    arrivals: Mapping[str, Mapping[str, float]] | None = None
    """Under Poisson arrivals at the rate that was asked: mean, p50, p90 and p99 of ttft, tpot and
    e2e, in seconds."""

    @property
    def chips(self) -> int:
        return sum(part.chips for part in self.parts)

    @property
    def tokens_per_s(self) -> float:
        return self.requests_per_s * self.output_len

    @property
    def tokens_per_s_per_chip(self) -> float:
        return self.tokens_per_s / self.chips

    @property
    def tokens_per_s_per_user(self) -> float:
        """What one user sees after the first token."""
        return 1.0 / self.tpot_s if self.tpot_s else float("inf")

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Cost of a million new tokens at this load."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour / 3600 / self.tokens_per_s * 1e6

    def to_dict(self) -> dict[str, Any]:
        seen = self.arrivals
        arrivals = None if seen is None else {f"{name}_s": dict(seen[name]) for name in seen}
        return {
            "mode": self.mode,
            "weights": self.weights,
            "cache": self.cache,
            "parts": [part.to_dict() for part in self.parts],
            "chips": self.chips,
            "concurrency": self.concurrency,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "e2e_s": self.e2e_s,
            "requests_per_s": self.requests_per_s,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_chip,
            "tokens_per_s_per_user": self.tokens_per_s_per_user,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "arrivals": arrivals,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingTie:
    """The first deployment is not the best: it is simpler, and the model cannot tell them apart."""

    width_frac: float
    """Share of the best one's figure within which the two are a tie."""
    gain_frac: float
    """Share of the first one's figure that the best might gain."""
    best_rank: int
    without: tuple[str, ...]
    """What the best needs and the first does not."""
    measured: bool
    """Whether published runs have told such deployments apart."""

    def words(self) -> str:
        """Say it in a line."""
        known = (
            ""
            if self.measured
            else ", for no run of this engine and kind of model on two pools is published"
        )
        return (
            f"tie: #1 is the simplest within {self.width_frac:.0%}, the error between the two"
            f"{known}; #{self.best_rank} might be {self.gain_frac:.0%} better:"
            f" {', '.join(self.without)} (--fastest)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "width_frac": self.width_frac,
            "gain_frac": self.gain_frac,
            "best_rank": self.best_rank,
            "without": list(self.without),
            "measured": self.measured,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingPlan:
    """Deployments in their order, and what was left out."""

    options: tuple[ServingOption, ...]
    """Those that keep the limits, best first, the best load of each deployment."""
    pareto: tuple[ServingOption, ...]
    """None has both more tokens per chip and more per user; most per user first."""
    nearest: Mapping[str, ServingOption]
    """Where nothing keeps the limits: the best on each limited axis, and the one with the least
    excess over all."""
    rejected: Mapping[str, int]
    """Deployments that were not priced, by reason."""
    priced: int
    """Deployments and loads that were priced."""
    tie: ServingTie | None = None
    """Where the first is not the best by prediction, but simpler."""
    notes: tuple[str, ...] = ()
    chips: tuple[str, ...] = ()
    """Kinds of chips of the cluster."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "plans": [{"rank": n, **one.to_dict()} for n, one in enumerate(self.options, 1)],
            "pareto": [option.to_dict() for option in self.pareto],
            "nearest": {name: option.to_dict() for name, option in self.nearest.items()},
            "rejected": dict(self.rejected),
            "search": {"priced": self.priced},
            "tie": None if self.tie is None else self.tie.to_dict(),
            "definitions": DEFINITIONS,
            "notes": list(self.notes),
        }


class Figures(Protocol):
    """What deployments are compared by: of one, or of a column of them."""

    @property
    def ttft_s(self) -> Any: ...
    @property
    def tpot_s(self) -> Any: ...
    @property
    def e2e_s(self) -> Any: ...
    @property
    def chips(self) -> Any: ...
    @property
    def tokens_per_s(self) -> Any: ...
    @property
    def tokens_per_s_per_chip(self) -> Any: ...


def excess(request: ServingRequest, option: Figures) -> Any:
    """Return the largest of figure / limit; 0 without limits."""
    found: Any = 0.0
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        if (limit := getattr(request, name)) is not None:
            found = np.maximum(found, getattr(option, name) / limit)
    return found


def order(request: ServingRequest, option: Figures) -> tuple[Any, Any]:
    """Return what options are sorted by, the best first, as the request's goal has it."""
    if request.target_rate is not None:
        return (option.chips, option.e2e_s)
    if request.rate is not None:
        return (option.e2e_s, option.chips)
    if request.objective == "latency":
        return (option.e2e_s, -option.tokens_per_s_per_chip)
    return (-option.tokens_per_s, option.e2e_s)


def best_of_each(request: ServingRequest, options: Iterable[ServingOption]) -> list[ServingOption]:
    """Return of every deployment, apart from load and counts of workers, the best."""
    best: dict[tuple[object, ...], ServingOption] = {}
    for option in options:
        parts = tuple((part.role, part.chip, part.worker) for part in option.parts)
        key = (option.mode, option.weights, option.cache, parts)
        if key not in best or order(request, option) < order(request, best[key]):
            best[key] = option
    return list(best.values())


def pareto_front(options: Iterable[ServingOption]) -> tuple[ServingOption, ...]:
    """Return what none beats in both tokens per chip and per user; most per user first."""
    front: list[ServingOption] = []
    for option in sorted(
        options, key=lambda one: (-one.tokens_per_s_per_user, -one.tokens_per_s_per_chip)
    ):
        if not front or option.tokens_per_s_per_chip > front[-1].tokens_per_s_per_chip:
            front.append(option)
    return tuple(front)


def nearest_of(
    request: ServingRequest, options: Sequence[ServingOption]
) -> dict[str, ServingOption]:
    """Return the least TTFT, TPOT and end-to-end time of all, on the axes that have a limit, and
    the least excess over all of them."""
    found = {"least excess": min(options, key=lambda one: excess(request, one))}
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        if getattr(request, name) is not None:
            found[name] = min(options, key=lambda one: (getattr(one, name), excess(request, one)))
    return found


def most_requests(options: Sequence[ServingOption]) -> ServingOption:
    """Return the option that carries most requests a second."""
    return max(options, key=lambda one: (one.requests_per_s, -one.e2e_s))
