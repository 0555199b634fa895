"""What a run tells: a line per step and a summary at the end, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any, Literal, TypedDict, get_args

from meshwright.cost.flops import model_flops_per_token
from meshwright.trainer.job import TrainJob
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
    "Rates",
    "StepReport",
    "Summary",
    "Tally",
    "ValidationReport",
]

WARMUP_STEPS = 2
"""First steps of a process that no typical figure counts: allocators, kernels and connections are
made then."""
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
        """Dense peak of one device in the run's precision: the one given, else the catalogue's;
        None where neither knows."""
        if self.job.peak_tflops is not None:
            return self.job.peak_tflops
        chip = None if self.device_name is None else find_device(self.device_name)
        try:
            return None if chip is None else chip.peak_flops_per_s(self.job.precision) / TERA
        except ConfigError:  # the chip has no unit of this precision
            return None

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.job.layout.gbs * self.job.seq_len

    @cached_property
    def flops(self) -> float:
        """Model FLOPs of one step: full attention, recompute not counted."""
        return self.tokens * float(
            model_flops_per_token(self.job.model, Workload(seq_len=self.job.seq_len))
        )

    def of(self, step_s: float) -> Speed:
        """Return the rates of a step."""
        tflops = self.flops / step_s / self.processes / TERA
        return Speed(
            tokens_per_s=self.tokens / step_s,
            tokens_per_s_per_gpu=self.tokens / step_s / self.processes,
            tflops_per_gpu=tflops,
            mfu=None if self.peak_tflops is None else tflops / self.peak_tflops,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
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

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationReport:
    """What an evaluation tells."""

    event: Literal["validation"] = "validation"
    step: int
    """Steps done."""
    loss: float
    """Mean cross-entropy of the held-out tokens."""
    tokens: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointReport:
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

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
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
    """Steps behind the first two, without the one that the profiler recorded; the figures below are
    of these."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {name: getattr(self, name) for name in self.__slots__}


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
        """Count a step."""
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
            **_speed(rates, typical),
            phases_s=(
                {name: seconds / len(times) for name, seconds in self.phases_s.items()}
                if times
                else None
            ),
            collectives_s=self.collectives_s,
            peak_allocated_bytes=self.peak_allocated_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            first_loss=None if self.first is None else self.first.loss,
            last_loss=None if self.last is None else self.last.loss,
        )


def _speed(rates: Rates, step_s: float | None) -> dict[str, Any]:
    return dict(rates.of(step_s)) if step_s is not None else dict.fromkeys(Speed.__annotations__)


def _most(before: list[int], now: list[int]) -> list[int]:
    """The most of each rank."""
    return [max(pair) for pair in zip(before, now, strict=True)] if before else now
