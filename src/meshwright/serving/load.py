"""A simulated load on all copies of a deployment, and what requests saw of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.errors import ConfigError
from meshwright.serving.deployment import Worker
from meshwright.serving.kernels import Floats
from meshwright.serving.request import ServingRequest
from meshwright.serving.simulate import Outcome, Requests, closed_loop, open_loop
from meshwright.serving.space import candidate_of

__all__ = ["Seen", "simulate_load", "summaries", "together"]

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the requests of a load saw."""

    outcome: Outcome
    copies: int
    chips: int

    @property
    def figures(self) -> Mapping[str, Mapping[str, float]]:
        """Mean and percentiles over requests of TTFT, TPOT and end-to-end time, in seconds;
        requests of one token have no TPOT."""
        return summaries(self.outcome)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rate = self.outcome.tokens_per_s
        return {
            "requests": len(self.outcome.sent_s),
            "copies": self.copies,
            "chips": self.chips,
            "makespan_s": self.outcome.makespan_s,
            "tokens_per_s": rate,
            "tokens_per_s_per_gpu": rate / self.chips,
            **{f"{name}_s": dict(figures) for name, figures in self.figures.items()},
        }


def summaries(outcome: Outcome) -> dict[str, dict[str, float]]:
    """Return mean and percentiles of TTFT, TPOT and end-to-end time, in seconds; without TPOT where
    all requests have one token."""
    columns = {"ttft": outcome.ttft_s, "tpot": outcome.tpot_s, "e2e": outcome.e2e_s}
    return {
        name: _summary(column[np.isfinite(column)])
        for name, column in columns.items()
        if np.isfinite(column).any()
    }


def _summary(values: Floats) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        **{name: float(np.quantile(values, share)) for name, share in _QUANTILES.items()},
    }


def simulate_load(
    request: ServingRequest,
    *,
    worker: Worker,
    requests: Requests,
    sent_s: Sequence[float] | None,
    concurrency: int | None,
) -> Seen:
    """Send requests to as many copies of a worker as the chips hold, in turn, and to their
    attention ranks in turn.

    With `sent_s` at those times, else by `concurrency` clients in all that wait for their answers.
    The types of weights and cache are the request's first.
    """
    if len(request.cluster.pools) > 1:
        raise ConfigError(
            f"cluster {request.cluster.name}: a load is simulated on one kind of chip; name one of"
            " them"
        )
    pool = request.cluster.pools[0]
    if pool.num_chips < worker.chips:
        raise ConfigError(f"{worker.name} needs {worker.chips} chips; there are {pool.num_chips}")
    if not request.weights or not request.cache:
        raise ConfigError("a simulated load needs the types of weights and cache")
    one = candidate_of(request, pool, worker, request.weights[0], request.cache[0])
    copies = pool.num_chips // worker.chips
    ways = min(
        copies * worker.attention_dp, len(requests.prompts), concurrency or len(requests.prompts)
    )
    outcomes = []
    for way in range(ways):
        part = Requests(
            prompts=requests.prompts[way::ways],
            outputs=requests.outputs[way::ways],
            cached=request.cached_share,
        )
        limits = {"slots": request.engine.max_sequences, "cache_tokens": one.memory.cache_tokens}
        if sent_s is not None:
            outcomes.append(open_loop(one.clock, part, sent_s=sent_s[way::ways], **limits))
        else:
            clients = (concurrency or 1) // ways + (way < (concurrency or 1) % ways)
            outcomes.append(closed_loop(one.clock, part, concurrency=max(1, clients), **limits))
    return Seen(outcome=together(outcomes), copies=copies, chips=copies * worker.chips)


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Return what the requests of several ranks saw, one rank's after the other's."""
    columns = {
        name: np.concatenate([getattr(one, name) for one in outcomes])
        for name in ("sent_s", "ttft_s", "tpot_s", "e2e_s")
    }
    ends = max(float((one.sent_s + one.e2e_s).max()) for one in outcomes)
    return Outcome(
        **columns,
        output_tokens=sum(one.output_tokens for one in outcomes),
        makespan_s=ends - float(columns["sent_s"].min()),
    )
