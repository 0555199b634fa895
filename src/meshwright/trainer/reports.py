"""What a run tells, as values: phases and peaks of a step, its line, a summary at the end."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, TypedDict, get_args

import torch
import torch.distributed as dist
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from meshwright.cost.flops import model_flops_per_token
from meshwright.trainer.job import TrainJob
from meshwright.trainer.room import Recorded, collective_seconds
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import find_device
from meshwright.values.models.params import model_params
from meshwright.values.units import TERA
from meshwright.values.workload import Workload

__all__ = [
    "ENDINGS",
    "WARMUP_STEPS",
    "CheckpointReport",
    "Ending",
    "Phases",
    "Rates",
    "StepReport",
    "Summary",
    "Tally",
    "ValidationReport",
    "memory_history",
    "peak_bytes",
    "profiled_step",
    "reset_peaks",
]

WARMUP_STEPS = 2
"""First steps that no typical figure counts: allocators, kernels and connections are made."""
Ending = Literal["steps", "minutes", "signal"]
"""What ended a run: it did all its steps, its minutes were over, or somebody stopped it."""
ENDINGS: tuple[Ending, ...] = get_args(Ending)


class Speed(TypedDict):
    """A step's time as rates: tokens of all ranks and of one, model FLOPs (full attention,
    recompute not counted), share of the peak."""

    tokens_per_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a step's time means in tokens and FLOPs."""

    job: TrainJob
    processes: int
    device_name: str | None
    """As the driver spells it; None is a processor."""

    @cached_property
    def peak_tflops(self) -> float | None:
        """Dense peak of a device in the run's precision: given, the catalogue's, or None."""
        if self.job.peak_tflops is not None:
            return self.job.peak_tflops
        chip = None if self.device_name is None else find_device(self.device_name)
        try:
            return None if chip is None else chip.peak_flops_per_s(self.job.precision) / TERA
        except ConfigError:  # the chip has no unit of this precision
            return None

    @property
    def tokens(self) -> int:
        return self.job.layout.gbs * self.job.seq_len

    @cached_property
    def flops(self) -> float:
        """Model FLOPs of one step: full attention, recompute not counted."""
        work = Workload(seq_len=self.job.seq_len)
        return self.tokens * float(model_flops_per_token(self.job.model, work))

    def of(self, step_s: float) -> Speed:
        tflops = self.flops / step_s / self.processes / TERA
        return Speed(
            tokens_per_s=self.tokens / step_s,
            tokens_per_s_per_gpu=self.tokens / step_s / self.processes,
            tflops_per_gpu=tflops,
            mfu=None if self.peak_tflops is None else tflops / self.peak_tflops,
        )


class _Told:
    __slots__: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport(_Told):
    """What one step tells."""

    event: Literal["step"] = "step"
    step: int
    """From 1."""
    loss: float
    """Mean cross-entropy of the step's tokens, before its update."""
    gradient_norm: float
    learning_rate: float
    step_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    """Model FLOPs: full attention, recompute not counted."""
    mfu: float | None
    phases_s: dict[str, float]
    """Of this rank; they sum to `step_s`."""
    collectives_s: dict[str, float] | None
    """Of this rank, by kind, in the step that the profiler recorded; None in others."""
    peak_allocated_bytes: list[int]
    """Of each rank."""
    peak_reserved_bytes: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationReport(_Told):
    """What an evaluation tells."""

    event: Literal["validation"] = "validation"
    step: int
    """Steps done."""
    loss: float
    """Mean cross-entropy of the held-out tokens."""
    tokens: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointReport(_Told):
    """What a checkpoint tells when it is whole."""

    event: Literal["checkpoint"] = "checkpoint"
    step: int
    validation_loss: float | None
    """At that step; None where nobody evaluated."""
    write_s: float
    """From its start until all of this rank was written; steps go on meanwhile unless they wait."""
    deleted: list[int]
    """Steps of the checkpoints that went."""
    stripped: list[int]
    """Steps of those that lost their optimizer states."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary(_Told):
    """What the whole run tells, of rank 0. Figures that no step was left to give are None."""

    event: Literal["summary"] = "summary"
    model: str
    parameters: int
    layout: str
    """As `--layout` takes it."""
    precision: str
    seq_len: int
    gbs: int
    processes: int
    device: str
    torch_version: str
    peak_tflops_per_gpu: float | None
    """What `mfu` is a share of."""
    ended_by: Ending
    first_step: int | None
    last_step: int
    start_s: float
    """From the start of the process until its first step began."""
    measured_steps: int
    """Steps behind the first two but the profiled one; the figures below are of these."""
    step_s: float | None
    """Median."""
    step_s_range: list[float] | None
    """Least and most."""
    tokens_per_s: float | None
    tokens_per_s_per_gpu: float | None
    tflops_per_gpu: float | None
    mfu: float | None
    phases_s: dict[str, float] | None
    """Means, which sum to the mean step."""
    collectives_s: dict[str, float] | None
    """Of the recorded step."""
    peak_allocated_bytes: list[int]
    """The most of all steps, of each rank."""
    peak_reserved_bytes: list[int]
    first_loss: float | None
    last_loss: float | None


@dataclass(kw_only=True)
class Tally:
    """What is kept of the steps of this process until its end."""

    rates: Rates
    times_s: list[float] = field(default_factory=list)
    """Of measured steps."""
    phases_s: dict[str, float] = field(default_factory=dict)
    """Sums over measured steps."""
    num_steps: int = 0
    first: StepReport | None = None
    last: StepReport | None = None
    collectives_s: dict[str, float] | None = None
    peak_allocated_bytes: list[int] = field(default_factory=list)
    peak_reserved_bytes: list[int] = field(default_factory=list)

    def add(self, report: StepReport) -> None:
        self.num_steps += 1
        self.first, self.last = self.first or report, report
        self.peak_allocated_bytes = _most(self.peak_allocated_bytes, report.peak_allocated_bytes)
        self.peak_reserved_bytes = _most(self.peak_reserved_bytes, report.peak_reserved_bytes)
        if report.collectives_s is not None:
            self.collectives_s = report.collectives_s
        elif self.num_steps > WARMUP_STEPS:
            self.times_s.append(report.step_s)
            for name, seconds in report.phases_s.items():
                self.phases_s[name] = self.phases_s.get(name, 0.0) + seconds

    def summary(
        self, *, done: int, start_s: float, ended_by: Ending, device: str, torch_version: str
    ) -> Summary:
        """Sum up; `done` counts the steps of the whole run, those before a resume included."""
        job, rates, times = self.rates.job, self.rates, self.times_s
        typical = median(times) if times else None
        sums = self.phases_s.items()
        return Summary(
            model=job.model.name,
            parameters=model_params(job.model).total,
            layout=job.layout.words(),
            precision=job.precision,
            seq_len=job.seq_len,
            gbs=job.layout.gbs,
            processes=rates.processes,
            device=device,
            torch_version=torch_version,
            peak_tflops_per_gpu=rates.peak_tflops,
            ended_by=ended_by,
            first_step=None if self.first is None else self.first.step,
            last_step=done,
            start_s=start_s,
            measured_steps=len(times),
            step_s=typical,
            step_s_range=[min(times), max(times)] if times else None,
            **(dict.fromkeys(Speed.__annotations__) if typical is None else rates.of(typical)),
            phases_s={name: total / len(times) for name, total in sums} if times else None,
            collectives_s=self.collectives_s,
            peak_allocated_bytes=self.peak_allocated_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            first_loss=None if self.first is None else self.first.loss,
            last_loss=None if self.last is None else self.last.loss,
        )


def _most(before: list[int], now: list[int]) -> list[int]:
    """The most of each rank."""
    return [max(pair) for pair in zip(before, now, strict=True)] if before else now


_REST = "other"


class Phases:
    """Seconds of a step by phase: each moment belongs to the innermost phase it lies in, so that
    they sum to the step. On CUDA the borders are events on the stream, which cost no wait; the
    device is waited for at the end of the step alone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._borders: list[tuple[str, Any]] = []
        self._inside: list[str] = []

    def start(self) -> None:
        self._borders, self._inside = [], [_REST]
        self._border()

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
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
    """Most bytes allocated and reserved on the device; on a CPU the resident size, twice."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    unit = 1 if sys.platform == "darwin" else 1024
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return size, size


def profiled_step(
    step: Callable[[], StepReport], *, device: torch.device, trace: str | None
) -> StepReport:
    """Run a step under torch's profiler: collectives' seconds, and a `trace` file per rank."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as recorder:
        report = step()
    if trace is not None:
        recorder.export_chrome_trace(str(_file_of_rank(trace, "json")))
    return replace(report, collectives_s=collective_seconds(_events(recorder)))


def _events(recorder: Any) -> list[Recorded]:
    """The few events that matter, from the raw record: torch's own list takes seconds."""
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
    """Record every allocation on CUDA; what is yielded, or running out of memory, writes them."""
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
