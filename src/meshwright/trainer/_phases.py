"""Where the time of a step goes, by phase; and peaks of memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch

__all__ = ["Phases", "peak_bytes", "reset_peaks"]

_REST = "other"


class Phases:
    """Seconds of a step by phase: each moment belongs to the innermost phase it lies in, so that
    they sum to the step.

    On CUDA the borders are events on the stream, which cost no wait; the device is waited for at
    the end of the step alone.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._borders: list[tuple[str, Any]] = []
        self._inside: list[str] = []

    def start(self) -> None:
        """Begin a step."""
        self._borders, self._inside = [], [_REST]
        self._border()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """What runs inside belongs to the phase."""
        self._inside.append(name)
        self._border()
        try:
            yield
        finally:
            self._inside.pop()
            self._border()

    def _border(self) -> None:
        self._borders.append((self._inside[-1], self._now()))

    def _now(self) -> Any:
        if self.device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take(self) -> dict[str, float]:
        """End the step; return the seconds of each phase."""
        self._border()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        seconds: dict[str, float] = {}
        for (name, start), (_, end) in pairwise(self._borders):
            seconds[name] = seconds.get(name, 0.0) + _between(start, end)
        return seconds


def _between(start: Any, end: Any) -> float:
    return end - start if isinstance(start, float) else start.elapsed_time(end) / 1000


def reset_peaks(device: torch.device) -> None:
    """Forget the peaks so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> tuple[int, int]:
    """Most bytes allocated and reserved on the device; on a CPU the largest resident size of the
    process, twice."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    unit = 1 if sys.platform == "darwin" else 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return size, size
