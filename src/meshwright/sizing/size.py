"""The largest model that trains in a given time: in closed form, and by the best layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from meshwright.search.problem import Problem, dims_of
from meshwright.search.result import Plan
from meshwright.sizing.duration import Duration
from meshwright.sizing.shapes import Shape, shape_of
from meshwright.values.errors import ConfigError
from meshwright.values.units import DAY_S, TERA

__all__ = [
    "CLASSIC_FLOPS",
    "TOKENS_PER_PARAM",
    "Budget",
    "ComputeOptimal",
    "SizeResult",
    "Sized",
    "classic_params",
    "classic_seconds",
    "compute_optimal",
    "find_size",
]

CLASSIC_FLOPS = 8.0
"""FLOP per parameter and token: 6 of forward and backward (arXiv:2001.08361, section 2.1) and 2 of
a forward that is done again; as in NVIDIA's AutoConfigurator for NeMo 1.x (`base_config.py`)."""
TOKENS_PER_PARAM = 20.0
"""Chinchilla (arXiv:2203.15556), section 3.4: about this many tokens per parameter give the least
loss for a budget of compute."""
_USEFUL_FLOPS = 6.0
"""FLOP per parameter and token that buy a loss, no recompute (arXiv:2001.08361, section 2.1)."""
_SIZE_FACTORS: Mapping[str, float] = MappingProxyType({"mt5": 0.87})
_TIME_FACTORS: Mapping[str, float] = MappingProxyType({"mt5": 1.15})
"""What the same program multiplies sizes and days of a family by; its large vocabulary costs more
than its parameters tell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Chips for a time, and the tokens to train on."""

    chips: int
    seconds: float
    tokens: float | None = None
    """None: 20 per parameter."""
    flops_per_s_per_chip: float
    """Achieved, not the peak."""

    def __post_init__(self) -> None:
        for name in ("chips", "seconds", "tokens", "flops_per_s_per_chip"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value:g}: expected a positive number")

    @property
    def flops(self) -> float:
        """FLOP of all chips over the whole time."""
        return self.chips * self.flops_per_s_per_chip * self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeOptimal:
    """The size and the tokens of the least loss for some compute."""

    params: float
    tokens: float


def classic_params(budget: Budget, *, series: str) -> float:
    """Parameters that a budget trains.

    Formula:  factor(series) * chips * FLOP/s * seconds / (8 * tokens); sqrt(chips * FLOP/s *
              seconds / (8 * 20)) without tokens
    Units:    parameters.
    Source:   NVIDIA AutoConfigurator for NeMo 1.x, base_config.py; the factor is 0.87 for mT5, else
              1.
    Valid:    where the figure of achieved FLOP/s is right; nothing is said of memory or layouts.
    Checked:  tests/sizing/test_closed_form.py
    """
    factor = _SIZE_FACTORS.get(series, 1.0)
    if budget.tokens is None:
        return math.sqrt(factor * budget.flops / (CLASSIC_FLOPS * TOKENS_PER_PARAM))
    return factor * budget.flops / (CLASSIC_FLOPS * budget.tokens)


def classic_seconds(params: float, budget: Budget, *, series: str) -> float:
    """Seconds that a budget's chips take for a model of this size; the budget's own time is not
    looked at.

    Formula:  factor(series) * 8 * params * tokens / (chips * FLOP/s)
    Units:    s.
    Source:   NVIDIA AutoConfigurator for NeMo 1.x, base_config.py; the factor is 1.15 for mT5, else
              1.
    Checked:  tests/sizing/test_closed_form.py
    """
    rate = budget.chips * budget.flops_per_s_per_chip
    tokens = TOKENS_PER_PARAM * params if budget.tokens is None else budget.tokens
    return _TIME_FACTORS.get(series, 1.0) * CLASSIC_FLOPS * params * tokens / rate


def compute_optimal(flops: float) -> ComputeOptimal:
    """Size and tokens of the least loss for this much compute.

    Formula:  flops = 6 * params * tokens with tokens = 20 * params
    Units:    parameters, tokens.
    Source:   Chinchilla (arXiv:2203.15556), section 3.4 and table 3.
    Valid:    training cost alone; a model that is served much is better smaller and trained longer
              (arXiv:2401.00448).
    Checked:  tests/sizing/test_closed_form.py
    """
    params = math.sqrt(flops / (_USEFUL_FLOPS * TOKENS_PER_PARAM))
    return ComputeOptimal(params=params, tokens=TOKENS_PER_PARAM * params)


_CLOSE = 0.98
"""A size that takes this share of the deadline is not tried larger: shapes are 2 % apart."""
_MOST_TRIES = 12
_SHRINK = 0.7
"""By which a size is cut that does not fit, or that nothing is known about."""
_MARGIN = 0.99
"""Aimed below the deadline, as shapes are up to 2 % off the size asked."""
_LEAST_SLOPE, _MOST_SLOPE = 0.5, 3.0
"""Days grow with size, or its square; two sizes a few percent apart may seem to say otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sized:
    """One size that was tried."""

    shape: Shape
    problem: Problem
    plan: Plan | None
    """None where it does not fit."""
    run: Duration | None

    @property
    def days(self) -> float | None:
        """Days of its run."""
        return None if self.run is None else self.run.wall_s / DAY_S

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "params": self.shape.params,
            "like": self.shape.like,
            "published": self.shape.published,
            "model": dims_of(self.shape.model),
            "plan": None if self.plan is None else self.plan.to_dict(),
            "run": None if self.run is None else self.run.to_dict(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeResult:
    """What a budget trains."""

    series: str
    budget: Budget
    """With the FLOP/s that the closed form assumes."""
    classic: float
    """Parameters by the closed form."""
    best: Sized | None
    """The largest size that was found to make it; None where none did."""
    tried: tuple[Sized, ...]
    """In the order in which they were tried."""
    optimal: ComputeOptimal | None
    """Compute-optimal size and tokens at the FLOP/s of `best`."""
    exponent: float | None
    """By which power the days grow with the size, around `best`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `size --json` prints."""
        return {
            "series": self.series,
            "days": self.budget.seconds / DAY_S,
            "chips": self.budget.chips,
            "tokens": self.budget.tokens,
            "classic": {
                "params": self.classic,
                "tflops_per_gpu": self.budget.flops_per_s_per_chip / TERA,
                "flops_per_param_token": CLASSIC_FLOPS,
            },
            "best": None if self.best is None else self.best.to_dict(),
            "tried": [{"params": sized.shape.params, "days": sized.days} for sized in self.tried],
            "compute_optimal": (
                None
                if self.optimal is None
                else {"params": self.optimal.params, "tokens": self.optimal.tokens}
            ),
            "days_exponent": self.exponent,
        }


def find_size(
    budget: Budget, *, series: str, price: Callable[[Shape, int], Sized], vocab: int | None = None
) -> SizeResult:
    """Return the largest size that a budget trains.

    `price` plans a shape and estimates its run on so many tokens. Sizes are tried from the closed
    form's on, each next one where the power law through the last two meets the deadline, until one
    takes 98 to 100 % of it.
    """
    classic = classic_params(budget, series=series)
    tried: list[Sized] = []
    wanted = classic
    while len(tried) < _MOST_TRIES:
        shape = shape_of(wanted, series=series, vocab=vocab)
        if _is_known(shape, tried):
            between = _between(tried, budget.seconds)
            shape = shape if between is None else shape_of(between, series=series, vocab=vocab)
            if _is_known(shape, tried):
                break
        tried.append(
            price(
                shape,
                round(TOKENS_PER_PARAM * shape.params if budget.tokens is None else budget.tokens),
            )
        )
        if _is_close(tried[-1], budget.seconds):
            break
        wanted = _next_size(tried, budget.seconds, power=2.0 if budget.tokens is None else 1.0)
    made = [
        sized for sized in tried if sized.run is not None and sized.run.wall_s <= budget.seconds
    ]
    best = max(made, key=lambda sized: sized.shape.params, default=None)
    return SizeResult(
        series=series,
        budget=budget,
        classic=classic,
        best=best,
        tried=tuple(tried),
        optimal=None if best is None else _optimal(best, budget),
        exponent=_exponent(tried),
    )


def _is_known(shape: Shape, tried: list[Sized]) -> bool:
    return any(sized.shape.model == shape.model for sized in tried)


def _between(tried: list[Sized], deadline_s: float) -> float | None:
    """The middle between the largest size that made it and the smallest that did not, if known."""
    made = [s.shape.params for s in tried if s.run is not None and s.run.wall_s <= deadline_s]
    missed = [s.shape.params for s in tried if s.run is None or s.run.wall_s > deadline_s]
    return math.sqrt(max(made) * min(missed)) if made and missed else None


def _is_close(sized: Sized, deadline_s: float) -> bool:
    return sized.run is not None and _CLOSE * deadline_s <= sized.run.wall_s <= deadline_s


def _next_size(tried: list[Sized], deadline_s: float, *, power: float) -> float:
    """The size at which the power law through what is known meets the deadline, within what is
    known of sizes that made it or did not."""
    last, between = tried[-1], _between(tried, deadline_s)
    if last.run is None:
        return _SHRINK * last.shape.params if between is None else between
    wanted: float = (
        last.shape.params
        * (deadline_s / last.run.wall_s) ** (1 / (_exponent(tried) or power))
        * _MARGIN
    )
    made = max(
        (s.shape.params for s in tried if s.run is not None and s.run.wall_s <= deadline_s),
        default=0,
    )
    missed = min(
        (s.shape.params for s in tried if s.run is None or s.run.wall_s > deadline_s),
        default=math.inf,
    )
    return wanted if between is None or made < wanted < missed else between


def _exponent(tried: list[Sized]) -> float | None:
    """Slope of log days over log size through the known neighbours that are farthest apart; None
    for fewer, or a slope that misleads."""
    known = sorted(
        (math.log(s.shape.params), math.log(s.run.wall_s)) for s in tried if s.run is not None
    )
    pairs = [
        (right[0] - left[0], right[1] - left[1])
        for left, right in pairwise(known)
        if right[0] > left[0]
    ]
    if not pairs:
        return None
    step, rise = max(pairs)
    slope = rise / step
    return slope if _LEAST_SLOPE <= slope <= _MOST_SLOPE else None


def _optimal(best: Sized, budget: Budget) -> ComputeOptimal:
    """At the FLOP/s that the best plan reaches, over the time that it trains."""
    assert best.plan is not None and best.run is not None
    share = best.run.train_s / best.run.wall_s
    return compute_optimal(best.plan.flops_per_s_per_gpu * budget.chips * budget.seconds * share)
