"""Where the time of a step goes, by phase; and peaks of memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from meshwright.trainer.reports import StepReport
from meshwright.trainer.room import Recorded, collective_seconds

__all__ = ["Phases", "memory_history", "peak_bytes", "profiled_step", "reset_peaks"]

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


def profiled_step(
    step: Callable[[], StepReport], *, device: torch.device, trace: str | None
) -> StepReport:
    """Run a step under torch's profiler; its report gets the seconds of collectives, and `trace` a
    file per rank."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as recorder:
        report = step()
    if trace is not None:
        recorder.export_chrome_trace(str(_file_of_rank(trace, "json")))
    return replace(report, collectives_s=collective_seconds(_events(recorder)))


def _events(recorder: Any) -> list[Recorded]:
    """The few events that matter, from the raw record: torch's own list of all of them takes
    seconds to build."""
    return [
        Recorded(
            name=event.name(),
            start_us=event.start_ns() / 1e3,
            duration_us=event.duration_ns() / 1e3,
            on_device=event.device_type() != DeviceType.CPU,
        )
        for event in recorder.profiler.kineto_results.events()
        if event.name().startswith(("c10d::", "gloo:", "nccl"))
    ]


@contextmanager
def memory_history(folder: str | None) -> Iterator[Callable[[], None]]:
    """Record every allocation on CUDA; what is yielded writes them, and so does running out of
    memory."""
    if folder is None:
        yield lambda: None
        return
    torch.cuda.memory._record_memory_history()

    def dump() -> None:
        torch.cuda.memory._dump_snapshot(str(_file_of_rank(str(folder), "pickle")))

    try:
        yield dump
    except torch.OutOfMemoryError:
        dump()
        raise
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _file_of_rank(folder: str, ending: str) -> Path:
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder, f"rank-{dist.get_rank()}.{ending}")
