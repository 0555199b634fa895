"""What is wrong with a run, by stated rules on its reports; each names its numbers.

failed       an error in the log behind its last report, and silence
nan          the newest loss or gradient norm is no number, or an iteration was counted so in the
             last RECENT reports
hang         silence for QUIET_REPORTS times the usual time between reports and QUIET_STEPS steps on
             top, five minutes at least; half an hour before the first two reports, and while the
             log says that a checkpoint is being written
loss_spike   one of the last RECENT losses is above the median of the LEAST before them by
             SPIKE_SIGMAS deviations and SPIKE_LEAST of it. A deviation is 1.4826 / sqrt(2) of the
             median step from loss to loss among the WINDOW before, so that neither noise nor a fast
             descent is a spike
slow         the median of the last RECENT steps is SLOW times what it was: the lesser of the
             medians of the WINDOW steps before them and of the first WINDOW, so that a slow-down
             does not become the habit it is held against. Warm-ups and skipped updates are left out
below_plan   the median of the last RECENT steps is beyond the slow end of the plan's 80 % interval
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Literal, get_args

from meshwright.logs import Report, steady_reports
from meshwright.runs.classify import START_LIMIT_S
from meshwright.runs.failures import Failure
from meshwright.units import format_seconds
from meshwright.watch.facts import RunFacts

__all__ = [
    "ALARMS",
    "LEAST",
    "QUIET_LEAST_S",
    "QUIET_REPORTS",
    "QUIET_STEPS",
    "RECENT",
    "SLOW",
    "SPIKE_LEAST",
    "SPIKE_SIGMAS",
    "WINDOW",
    "Alarm",
    "AlarmKind",
    "find_alarms",
    "quiet_limit_s",
]

AlarmKind = Literal["failed", "nan", "hang", "loss_spike", "slow", "below_plan"]
ALARMS: tuple[AlarmKind, ...] = get_args(AlarmKind)
_FATAL: tuple[AlarmKind, ...] = ("failed", "nan", "hang")
RECENT = 5
"""Newest reports that a rule looks at."""
WINDOW = 32
"""Reports that they are held against."""
LEAST = 8
"""As many at least."""
QUIET_REPORTS = 5.0
QUIET_STEPS = 60.0
"""An evaluation says nothing until its end: Megatron-LM's 100 iterations (--eval-iters) of a third
of a step each, twice."""
QUIET_LEAST_S = 300.0
SLOW = 1.2
"""Five steps whose median is a fifth longer: jitter of single steps is larger, that of a median of
five is not."""
SPIKE_SIGMAS = 6.0
SPIKE_LEAST = 0.05
"""Of the loss itself, so that a loss that hardly moves does not spike by its last digit."""
_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """One thing that is wrong."""

    kind: AlarmKind
    message: str
    step: int | None = None
    """Where it shows; None where no step is told."""

    @property
    def fatal(self) -> bool:
        """Whether the run makes no progress any more."""
        return self.kind in _FATAL

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {"kind": self.kind, "fatal": self.fatal, "step": self.step, "message": self.message}


def find_alarms(
    reports: Sequence[Report],
    *,
    facts: RunFacts,
    silent_s: float | None,
    limit_s: float,
    failure: Failure | None,
    ended: bool,
) -> tuple[Alarm, ...]:
    """Return what is wrong by the rules above.

    `silent_s` is how long the log has not grown, `limit_s` for how long it may (see
    `quiet_limit_s`), `ended` that the run is at its end.
    """
    steady = steady_reports(reports)
    found = [
        *_no_number(reports),
        *_spike(reports),
        *_slow(steady, facts),
        *_below_plan(steady, facts),
    ]
    last = reports[-1].step if reports else None
    if failure is not None:
        evidence = f" ({failure.evidence})" if failure.evidence else ""
        found.insert(
            0,
            Alarm(
                kind="failed",
                message=f"{failure.failure_class}: {failure.message}{evidence}",
                step=last,
            ),
        )
    elif not ended and silent_s is not None and silent_s > limit_s:
        message = (
            f"no line for {_time(silent_s)}, where {_time(limit_s)} are long: it hangs, or has"
            " ended"
        )
        found.insert(0, Alarm(kind="hang", message=message, step=last))
    return tuple(found)


def quiet_limit_s(usual_s: float | None, *, step_s: float | None, is_saving: bool) -> float:
    """Return for how long a log may be silent; `usual_s` is the usual time between two reports,
    None before there are two."""
    if usual_s is None or step_s is None:
        return START_LIMIT_S
    limit_s = max(QUIET_LEAST_S, QUIET_REPORTS * usual_s + QUIET_STEPS * step_s)
    return max(limit_s, START_LIMIT_S) if is_saving else limit_s


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 100 else f"{seconds / 60:,.0f} min"


def _no_number(reports: Sequence[Report]) -> Iterator[Alarm]:
    recent = reports[-RECENT:]
    if not recent:
        return
    for name, values in (
        ("loss", [r.loss for r in recent]),
        ("gradient norm", [r.grad_norm for r in recent]),
    ):
        told = [value for value in values if value is not None]
        if told and not math.isfinite(told[-1]):
            yield Alarm(kind="nan", message=f"the {name} is {told[-1]}", step=recent[-1].step)
            return
    counted = sum(report.nan for report in recent)
    if counted:
        yield Alarm(
            kind="nan",
            message=f"{counted} of the last iterations gave no number",
            step=recent[-1].step,
        )


def _spike(reports: Sequence[Report]) -> Iterator[Alarm]:
    """The highest of the last few, where it stands out."""
    told = [
        (report.step, report.loss)
        for report in reports
        if report.loss is not None and math.isfinite(report.loss)
    ]
    before = [loss for _, loss in told[:-RECENT]][-WINDOW:]
    if len(before) < LEAST:
        return
    middle = median(before[-LEAST:])
    spread = _SIGMA / math.sqrt(2) * median(abs(after - loss) for loss, after in pairwise(before))
    step, highest = max(told[-RECENT:], key=lambda one: one[1])
    if highest - middle > max(SPIKE_SIGMAS * spread, SPIKE_LEAST * abs(middle)):
        now = "" if told[-1][1] == highest else f"; now {told[-1][1]:.4g}"
        yield Alarm(
            kind="loss_spike",
            message=f"the loss rose to {highest:.4g} from {middle:.4g}{now}",
            step=step,
        )


def _slow(steady: Sequence[Report], facts: RunFacts) -> Iterator[Alarm]:
    times = [found for report in steady if (found := facts.seconds(report)) is not None]
    before = times[:-RECENT]
    if len(before) < LEAST:
        return
    usual, now = min(median(before[-WINDOW:]), median(before[:WINDOW])), median(times[-RECENT:])
    if now > SLOW * usual:
        message = (
            f"steps take {format_seconds(now)}, {now / usual:.2f} times the {format_seconds(usual)}"
            " before: a straggler, a throttled chip, or storage"
        )
        yield Alarm(kind="slow", message=message, step=steady[-1].step)


def _below_plan(steady: Sequence[Report], facts: RunFacts) -> Iterator[Alarm]:
    times = [found for report in steady if (found := facts.seconds(report)) is not None]
    if facts.step_interval_s is None or len(times) < RECENT:
        return
    low, high = facts.step_interval_s
    now = median(times[-RECENT:])
    if now > high:
        message = (
            f"steps take {format_seconds(now)}, the plan says {format_seconds(low)} to"
            f" {format_seconds(high)}"
        )
        yield Alarm(kind="below_plan", message=message, step=steady[-1].step)
