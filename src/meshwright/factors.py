"""Factors: how one cluster's own runs differ from the model, where no fact of a chip, a link or a
stack says it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from meshwright.errors import ConfigError

__all__ = ["Factors"]

LEAST, MOST = 0.05, 20.0
"""Beyond these a factor is a slip, or the run is not the one that was described."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """Multiples of the model's own times and bytes; 1 is the model. A calibration fits them to
    measured runs."""

    compute: float = 1.0
    """Time of the chip's work: products, attention, element-wise passes, recompute, embedding, head
    and loss, optimizer."""
    tensor: float = 1.0
    """Time of tensor-parallel collectives, before what hides them."""
    context: float = 1.0
    """Time of the exposed context-parallel exchange."""
    expert: float = 1.0
    """Time of the exposed expert-parallel exchange."""
    data: float = 1.0
    """Time of gradient reductions and weight gathers, plain or sharded, before what hides them."""
    pipeline: float = 1.0
    """Time of pipeline messages."""
    activations: float = 1.0
    """Bytes that come and go in a step: kept activations, recompute workspace, logits."""
    states: float = 1.0
    """Bytes that stay: weights, gradients, optimizer, and gathered copies of them."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not LEAST <= value <= MOST:
                raise ConfigError(
                    f"factor {field.name}={value}: expected a number from {LEAST} to {MOST}"
                )
