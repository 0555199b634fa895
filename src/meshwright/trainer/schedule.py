"""The course of the learning rate."""

from __future__ import annotations

import math

from meshwright.trainer.job import OptimizerSettings

__all__ = ["learning_rate"]


def learning_rate(step: int, settings: OptimizerSettings, *, steps: int) -> float:
    """Linear warm-up, then a cosine to the least rate at the last step; `step` counts from 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    low = settings.least_learning_rate
    return low + (settings.learning_rate - low) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
