"""What a run that trained to its end was measured to do."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Measured"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Figures of one finished run, warm-up left out."""

    step_s: float
    """Median seconds per optimizer step."""
    step_low_s: float
    """The fastest tenth of the steps took at most this."""
    step_high_s: float
    """And nine tenths at most this."""
    tokens_per_s: float
    """Of all chips together."""
    samples_per_s: float
    steps: int
    """Steps that the figures stand on."""
    peak_allocated_bytes: float | None = None
    """Of the rank that reports; None where the log does not say."""
    peak_reserved_bytes: float | None = None
    final_loss: float | None = None
