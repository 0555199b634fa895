"""What a fleet under a trace answers: copies by hour, what requests see, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.serving.engine import Cache, Weights, Worker
from meshwright.serving.fleet import Served
from meshwright.serving.kernels import Floats
from meshwright.serving.request import ServingRequest
from meshwright.serving.traffic import HOUR_S, Trace, TrafficAsked, Window

__all__ = ["Deployment", "FleetPlan", "Hour", "Judged", "judged", "pooled"]

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
FIGURES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What requests saw, held against the limits."""

    figures: Mapping[str, Mapping[str, float]]
    """Mean, p50, p95 and p99 of ttft, tpot (but of one token) and e2e, in seconds."""
    good_frac: float | None
    """Share of requests that each keep the limits of a request; None without such limits."""
    hit_frac: float
    """Share of the prompts' tokens that prefix caches held."""
    excess: float
    """The largest of figure / limit."""
    worst: str
    """The limit that it belongs to, such as `ttft p99`."""

    @property
    def keeps(self) -> bool:
        """Whether every limit is kept."""
        return self.excess <= 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, in seconds."""
        return {
            **{f"{name}_s": dict(figures) for name, figures in self.figures.items()},
            "good_frac": self.good_frac,
            "prefix_hit_frac": self.hit_frac,
            "excess": self.excess,
            "nearest_limit": self.worst,
        }


def judged(request: ServingRequest, asked: TrafficAsked, served: Served) -> Judged:
    """Return the figures of one window, and how near they are to the limits."""
    return pooled(request, asked, [(served, 1.0)])


def pooled(
    request: ServingRequest, asked: TrafficAsked, parts: Sequence[tuple[Served, float]]
) -> Judged:
    """Return the figures of several windows, each request of which stands for so many.

    Formula:  percentile q: the least value that a share q of the weight does not exceed
    Units:    seconds.
    Source:   the weighted form of the inverse of the empirical distribution.
    Valid:    one request at least.
    Checked:  tests/serving/test_fleet_search.py
    """
    weights = np.concatenate([np.full(len(one.e2e_s), each) for one, each in parts])
    columns = {
        name: np.concatenate([getattr(one, f"{name}_s") for one, _ in parts]) for name in FIGURES
    }
    figures = {
        name: _figures(column, weights)
        for name, column in columns.items()
        if not np.isnan(column).all()
    }
    asked_tokens = [(one, each * len(one.e2e_s)) for one, each in parts]
    total = sum(each for _, each in asked_tokens)
    hit = sum(one.hit_frac * each for one, each in asked_tokens) / total
    good = _good(request, columns, weights)
    ratios = _ratios(request, asked, figures, good)
    worst = max(ratios, key=lambda name: ratios[name])
    return Judged(figures=figures, good_frac=good, hit_frac=hit, excess=ratios[worst], worst=worst)


def _figures(column: Floats, weights: Floats) -> dict[str, float]:
    known = ~np.isnan(column)
    values, each = column[known], weights[known]
    order = np.argsort(values)
    values, each = values[order], each[order]
    below = np.cumsum(each)
    found = {"mean": float((values * each).sum() / below[-1])}
    for name, share in _SHARES.items():
        at = int(np.searchsorted(below, share * below[-1] * (1 - 1e-12)))
        found[name] = float(values[min(at, len(values) - 1)])
    return found


def _good(request: ServingRequest, columns: Mapping[str, Floats], weights: Floats) -> float | None:
    limits = {name: getattr(request, f"{name}_s") for name in FIGURES}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if not given:
        return None
    good = np.ones(len(weights), dtype=bool)
    for name, limit in given.items():
        good &= ~(columns[name] > limit)
    return float(weights[good].sum() / weights.sum())


def _ratios(
    request: ServingRequest,
    asked: TrafficAsked,
    figures: Mapping[str, Mapping[str, float]],
    good: float | None,
) -> dict[str, float]:
    """Figure over limit, by the limit's name."""
    found = {
        f"{name} {share}": figures[name][share] / limit
        for (name, share), limit in asked.tails.items()
        if name in figures
    }
    if asked.goodput is not None and good is not None:
        return {**found, "goodput": asked.goodput / good if good else float("inf")}
    means = {name: getattr(request, f"{name}_s") for name in figures}
    return found | {
        f"{name} mean": figures[name]["mean"] / limit
        for name, limit in means.items()
        if limit is not None
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """One copy of the model."""

    chip: str
    worker: Worker
    weights: Weights
    cache: Cache

    @property
    def name(self) -> str:
        """`tp=4 on h100, fp8 weights, fp8 cache`."""
        return f"{self.worker.name} on {self.chip}, {self.weights} weights, {self.cache} cache"

    def to_dict(self) -> dict[str, Any]:
        """Return plain types."""
        axes = {name: getattr(self.worker, name) for name in ("tp", "pp", "ep", "attention_dp")}
        kept = {"weights": self.weights, "cache": self.cache}
        return {"chip": self.chip, "layout": axes, **kept, "chips": self.worker.chips}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hour:
    """One hour of the trace and the fewest copies that keep the limits in it."""

    window: Window
    copies: int
    seen: Judged

    def to_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "hour": self.window.hour,
            "requests": self.window.requests,
            "simulated": self.window.counted,
            "copies": self.copies,
            **self.seen.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """The smallest fleet that keeps the limits in every hour, or the nearest to it."""

    trace: Trace
    deployment: Deployment | None
    """None where no copy of the model fits the chips."""
    hours: tuple[Hour, ...]
    """Empty where no number of copies keeps the limits."""
    seen: Judged | None
    """Of all requests on the whole fleet; where nothing keeps the limits, of the busiest stretch on
    as many copies as the chips hold."""
    most_copies: int
    """That the chips hold."""
    usd_per_chip_hour: float | None
    considered: Mapping[str, int | None]
    """Chips that each deployment needs for the busiest stretch; None where the chips do not
    suffice, or would be no fewer than those of one before it."""
    rejected: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @property
    def copies(self) -> int:
        """Of a fleet that never scales."""
        return max((hour.copies for hour in self.hours), default=0)

    @property
    def chips(self) -> int:
        """Of a fleet that never scales."""
        return self.copies * (self.deployment.worker.chips if self.deployment else 0)

    @property
    def mean_copies(self) -> float:
        """Over the trace's time, where every hour has what it needs and an hour without a request
        one copy.

        Formula:  sum over hours of copies * seconds / seconds of the trace
        """
        covered = sum(hour.window.seconds for hour in self.hours)
        idle = max(self.trace.seconds - covered, 0.0)
        busy = sum(hour.copies * hour.window.seconds for hour in self.hours)
        return (busy + idle) / max(self.trace.seconds, covered)

    def usd_per_day(self, copies: float) -> float | None:
        """Return the price of a day of so many copies.

        Formula:  copies * chips of a copy * price of a chip hour * 24
        """
        if self.usd_per_chip_hour is None or self.deployment is None:
            return None
        return copies * self.deployment.worker.chips * self.usd_per_chip_hour * 24.0

    def usd_per_million_tokens(self, copies: float) -> float | None:
        """Return the price of a million new tokens at the trace's mean rate.

        Formula:  price of a day / (new tokens of the trace * 24 hours / its time) * 1e6
        """
        usd = self.usd_per_day(copies)
        per_day = float(self.trace.outputs.sum()) * 24 * HOUR_S / self.trace.seconds
        return None if usd is None else usd / per_day * 1e6

    def _cost(self, copies: float) -> dict[str, Any]:
        return {
            "copies": copies,
            "usd_per_day": self.usd_per_day(copies),
            "usd_per_million_tokens": self.usd_per_million_tokens(copies),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "trace": self.trace.to_dict(),
            "deployment": None if self.deployment is None else self.deployment.to_dict(),
            "fleet": {**self._cost(self.copies), "chips": self.chips} if self.hours else None,
            "by_hour": self._cost(self.mean_copies) if self.hours else None,
            "seen": None if self.seen is None else self.seen.to_dict(),
            "hours": [hour.to_dict() for hour in self.hours],
            "most_copies": self.most_copies,
            "considered": dict(self.considered),
            "rejected": dict(self.rejected),
            "notes": list(self.notes),
        }
