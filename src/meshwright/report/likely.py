"""A figure with its interval, in one line: `16.9 s, likely 13.5 to 19.4 (11 published runs like
it)`."""

from __future__ import annotations

from meshwright.trust.intervals import Intervals
from meshwright.values.units import GIB, format_digits, format_seconds

__all__ = ["likely", "likely_memory", "likely_step"]


def likely(low: float, high: float, known_by: str) -> str:
    """Write the 80 % interval of a figure whose unit was said, and what it stands on."""
    return f"likely {format_digits(low)} to {format_digits(high)} ({known_by})"


def likely_step(step_s: float, found: Intervals) -> str:
    """Write a step time with its interval, in one unit."""
    scale = 1.0 if step_s >= 1 else 1e3
    low, high = (end * scale for end in found.step_s)
    return f"{format_seconds(step_s)}, {likely(low, high, found.known_by)}"


def likely_memory(found: Intervals) -> str:
    """Write the interval of a peak in GiB, with how many runs it stands on."""
    low, high = (end / GIB for end in found.peak_bytes)
    runs, _, like = found.memory_known_by.replace("published ", "", 1).partition(" of ")
    return likely(low, high, runs.replace(" ", " other ", 1) if like else runs)
