"""Where the time of a step goes, by phase; and peaks of memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch

__all__ = ["Phases", "peak_bytes", "reset_peaks"]


class Phases:
    """Seconds by name, summed over a step; on CUDA the device is waited for at the borders."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time what runs inside."""
        self._wait()
        start = perf_counter()
        try:
            yield
        finally:
            self._wait()
            self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def take(self) -> dict[str, float]:
        """Return the sums and start over."""
        found, self.seconds = self.seconds, {}
        return found


def reset_peaks(device: torch.device) -> None:
    """Forget the peaks so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> tuple[int, int]:
    """Most bytes allocated and reserved on the device; on a CPU the largest resident size of the process, twice."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    unit = 1 if sys.platform == "darwin" else 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return size, size
