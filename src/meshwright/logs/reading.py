"""What a log says of a run: its reports of steps, one value for all software."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

__all__ = [
    "FRAMEWORKS",
    "WARM_UP",
    "Evaluation",
    "Framework",
    "LogReading",
    "Report",
    "after_warm_up",
    "steady_reports",
]

Framework = Literal[
    "megatron-bridge",
    "megatron-lm",
    "nemo-1",
    "nemo-2",
    "torchtitan",
    "nanotron",
    "deepspeed",
    "meshwright",
]
FRAMEWORKS: tuple[Framework, ...] = get_args(Framework)
T = TypeVar("T")
WARM_UP = 3
"""Reports at the start of a process that are left out: compilation, allocator, first
collectives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What one line of a log says of a step, or of the mean of the steps since the line before;
    None is not said."""

    step: int | None = None
    """Steps that are done, from 1, whatever the software counts from."""
    step_s: float | None = None
    tokens_per_s: float | None = None
    """Of all chips."""
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    """Of all chips."""
    tflops_per_gpu: float | None = None
    """As the software counts its FLOPs."""
    loss: float | None = None
    grad_norm: float | None = None
    batch: float | None = None
    """Of one step, in what the software counts: samples, or tokens (nanotron from 0.4). It tells a
    batch that grows, no more."""
    skipped: int = 0
    """Iterations without an update (a loss scale that was too high)."""
    nan: int = 0
    """Iterations whose loss was no number."""
    start: int = 0
    """Which start of the software it is of, from 0: a run that was resumed counts some steps
    twice."""

    @property
    def has_rate(self) -> bool:
        """Whether the step's time is said, or follows from a rate."""
        rates = (self.step_s, self.tokens_per_s, self.tokens_per_s_per_gpu, self.samples_per_s)
        return any(rate is not None and 0 < rate < math.inf for rate in rates)

    def seconds(self, *, seq_len: int, gbs: int, num_chips: int) -> float | None:
        """Return the step's time, from a rate where the time itself is not said; None where neither
        is."""
        tokens = float(seq_len * gbs)
        for quantity, work in (
            (self.step_s, None),
            (self.tokens_per_s, tokens),
            (self.tokens_per_s_per_gpu, tokens / num_chips),
            (self.samples_per_s, float(gbs)),
        ):
            if quantity is not None and 0 < quantity < math.inf:
                return quantity if work is None else work / quantity
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """A loss of held-out data."""

    step: int
    """Steps that were done then."""
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReading:
    """What a log says."""

    framework: Framework
    reports: tuple[Report, ...] = ()
    """In the order in which the steps were done; of long logs the last ones."""
    num_reports: int = 0
    """Of those, and those before."""
    peak_allocated_bytes: float | None = None
    """Largest of all that ranks reported."""
    peak_reserved_bytes: float | None = None
    total_steps: int | None = None
    """Of the whole run, as the newest line says; None where the software does not tell."""
    evaluations: tuple[Evaluation, ...] = ()
    """In the order in which they were made; of long logs the last ones."""
    saved_step: int | None = None
    """Of the newest checkpoint that the log calls written."""
    is_saving: bool = False
    """Whether the log says that one is being written, and not yet that it is."""

    @property
    def step_s(self) -> tuple[float, ...]:
        """Times of steps, where reports say them."""
        return tuple(report.step_s for report in self.reports if report.step_s is not None)

    @property
    def steps(self) -> tuple[int, ...]:
        """Counts of steps, where reports say them."""
        return tuple(report.step for report in self.reports if report.step is not None)

    @property
    def loss(self) -> tuple[float, ...]:
        """Losses, where reports say them."""
        return tuple(report.loss for report in self.reports if report.loss is not None)

    @property
    def grad_norm(self) -> tuple[float, ...]:
        """Gradient norms, where reports say them."""
        return tuple(report.grad_norm for report in self.reports if report.grad_norm is not None)

    @property
    def tokens_per_s(self) -> tuple[float, ...]:
        """Rates of all chips, where reports say them."""
        return tuple(
            report.tokens_per_s for report in self.reports if report.tokens_per_s is not None
        )

    @property
    def tflops_per_gpu(self) -> tuple[float, ...]:
        """Rates of one chip, where reports say them."""
        return tuple(
            report.tflops_per_gpu for report in self.reports if report.tflops_per_gpu is not None
        )

    @property
    def last_step(self) -> int | None:
        """The furthest step that was done; None before the first."""
        return max(self.steps, default=None)


def steady_reports(reports: Iterable[Report]) -> tuple[Report, ...]:
    """Return the reports that a step's time may stand on.

    Those with a rate, of the last size of the batch where it grew, without iterations that skipped
    their update, and without the warm-up of each start: the first WARM_UP of it, at most a third,
    at least one.
    """
    rated = [report for report in reports if report.has_rate]
    last = rated[-1].batch if rated else None
    by_start: dict[int, list[Report]] = {}
    for report in rated:
        if report.batch == last:
            by_start.setdefault(report.start, []).append(report)
    kept = [report for found in by_start.values() for report in after_warm_up(found)]
    updated = [report for report in kept if not report.skipped and not report.nan]
    return tuple(updated or kept)


def after_warm_up(found: list[T]) -> list[T]:
    """Return what is left of the reports of one start: the first WARM_UP are left out, at most a
    third of all, at least one."""
    return found[max(1, min(WARM_UP, len(found) // 3)) :]
