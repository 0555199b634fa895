"""Profiles of one step: seconds of collectives, a Chrome trace, a snapshot of the allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from meshwright.trainer.reports import StepReport
from meshwright.trainer.traffic import Recorded, collective_seconds

__all__ = ["memory_history", "profiled_step"]


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
