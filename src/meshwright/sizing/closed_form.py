"""Size and time from one figure of achieved FLOP/s: NVIDIA's AutoConfigurator in closed form, and
the compute-optimal size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from meshwright.errors import ConfigError

__all__ = [
    "CLASSIC_FLOPS",
    "TOKENS_PER_PARAM",
    "Budget",
    "ComputeOptimal",
    "classic_params",
    "classic_seconds",
    "compute_optimal",
]

CLASSIC_FLOPS = 8.0
"""FLOP per parameter and token: 6 of forward and backward (arXiv:2001.08361, section 2.1) and 2 of
a forward that is done again; as in NVIDIA's AutoConfigurator for NeMo 1.x (`base_config.py`)."""
TOKENS_PER_PARAM = 20.0
"""Chinchilla (arXiv:2203.15556), section 3.4: about this many tokens per parameter give the least
loss for a budget of compute."""
_USEFUL_FLOPS = 6.0
"""FLOP per parameter and token that a loss is bought with: recompute not counted (arXiv:2001.08361,
section 2.1)."""
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
