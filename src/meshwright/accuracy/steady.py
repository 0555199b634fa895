"""The steady part of a run: iteration times with the warm-up left out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from meshwright.errors import ConfigError

__all__ = ["steady_s"]

WARM_UP = 3
"""Reports at the start of a run that are left out: compilation, allocator, first collectives."""


def steady_s(times_s: Sequence[float], *, source: str) -> float:
    """Return the median time of an iteration after the warm-up, which is at most a third of what was reported.

    The median leaves pauses for checkpoints and evaluation out, and slow single iterations.
    """
    times = [time for time in times_s if 0 < time < float("inf")]
    if len(times) < 2:
        raise ConfigError(f"{source}: {len(times)} iteration time(s) reported; the warm-up can't be told from the rest, give a longer log")
    return statistics.median(times[max(1, min(WARM_UP, len(times) // 3)) :])
