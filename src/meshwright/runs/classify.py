"""Why a run ended: one class from the launcher's word, the lines of its log and its steps; never an
echo where a cause is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshwright.logs import LogReading
from meshwright.runs.evidence import Evidence
from meshwright.runs.executors.executor import JobState, JobStatus
from meshwright.runs.failures import Failure, FailureClass

__all__ = ["HANG_FACTOR", "HANG_LEAST_S", "START_LIMIT_S", "classify", "hang_limit_s"]

HANG_FACTOR = 20.0
"""A run whose log has been silent for so many times the usual time between its reports hangs;
checkpoints and evaluation take less."""
HANG_LEAST_S = 120.0
"""And for no less than this."""
START_LIMIT_S = 1800.0
"""Before the first step: containers, compilation, communicators, data sets."""


_BY_STATE: Mapping[JobState, tuple[FailureClass, str]] = {
    "out_of_memory": ("host_oom", "the launcher says that memory ran out, which is the host's"),
    "node_failed": ("node_failure", "the launcher says that a node failed"),
    "preempted": ("preempted", "the scheduler took the nodes back"),
    "never_started": ("never_started", "it was never started"),
}
"""States that name the cause themselves."""
_SIGNALS = {6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_KILLED = (
    "killed by SIGKILL, and neither kernel nor launcher says why; mostly the host's memory ran out"
)


def classify(
    status: JobStatus,
    *,
    evidence: Sequence[Evidence] = (),
    reading: LogReading | None = None,
    silent_s: float | None = None,
    usual_s: float | None = None,
) -> Failure | None:
    """Return why a run failed; None where it ended well, or goes on.

    `evidence` is what its logs hold, nearest to the cause first; `silent_s` how long its log has
    not grown; `usual_s` the usual time between two reports, None before the first two. The first of
    these holds: a line that names the cause, a launcher's state that does, a loss that is no
    number, an exception, a collective that waited in vain, a hang, the time limit, an echo, the
    exit code alone.
    """
    hung = (
        silent_s is not None
        and silent_s > hang_limit_s(usual_s)
        and status.state in ("running", "cancelled", "timed_out", "unknown")
    )
    if status.state in ("queued", "succeeded") or (
        status.state in ("running", "unknown") and not hung
    ):
        return _no_number(reading) if status.state == "succeeded" else None
    step = reading.last_step if reading else None
    by_tier = {tier: found for found in reversed(evidence) for tier in (found.tier,)}
    if "cause" in by_tier:
        return _of_line(by_tier["cause"], step)
    if status.state in _BY_STATE:
        return _of_state(status, step)
    if (no_number := _no_number(reading)) is not None:
        return no_number
    for tier in ("exception", "peer"):
        if tier in by_tier:
            return _of_line(by_tier[tier], step)
    if hung:
        assert silent_s is not None
        return _hang(silent_s, usual_s, step)
    if "scheduler" in by_tier:
        return _of_line(by_tier["scheduler"], step)
    if status.state == "timed_out":
        return Failure(
            failure_class="time_limit",
            message="the time limit was reached",
            evidence=status.reason or None,
            step=step,
        )
    return _of_exit(status, by_tier.get("echo"), step)


def hang_limit_s(usual_s: float | None) -> float:
    """Return for how long a log may be silent before its run is taken to hang; `usual_s` is the
    usual time between two reports."""
    return START_LIMIT_S if usual_s is None else max(HANG_LEAST_S, HANG_FACTOR * usual_s)


def _of_line(found: Evidence, step: int | None) -> Failure:
    return Failure(
        failure_class=found.failure_class, message=found.message, evidence=found.line, step=step
    )


def _of_state(status: JobStatus, step: int | None) -> Failure:
    failure_class, message = _BY_STATE[status.state]
    return Failure(
        failure_class=failure_class, message=message, evidence=status.reason or None, step=step
    )


def _no_number(reading: LogReading | None) -> Failure | None:
    """The last loss that was told is none; or no step of several changed the weights, which is the
    same of gradients."""
    told = [report for report in reading.reports if report.loss is not None] if reading else []
    if told and told[-1].loss is not None and not math.isfinite(told[-1].loss):
        bad = next(
            report for report in told if report.loss is not None and not math.isfinite(report.loss)
        )
        words = (
            f"loss {bad.loss} at step {bad.step}" if bad.step is not None else f"loss {bad.loss}"
        )
        return Failure(
            failure_class="nan_loss",
            message="the loss became no number",
            evidence=words,
            step=bad.step,
        )
    return None


def _hang(silent_s: float, usual_s: float | None, step: int | None) -> Failure:
    usual = (
        "before the first step"
        if usual_s is None
        else f"where a report usually takes {usual_s:.3g} s"
    )
    return Failure(
        failure_class="hang", message=f"no progress for {silent_s:.0f} s {usual}", step=step
    )


def _of_exit(status: JobStatus, echo: Evidence | None, step: int | None) -> Failure:
    """Nobody says why: give what there is, and no more."""
    if echo is not None and echo.failure_class != "unknown":
        return _of_line(echo, step)
    code = status.exit_code
    signal = None if code is None else -code if code < 0 else code - 128
    if signal == 9:
        message = _KILLED
    elif status.state == "cancelled":
        message = "it was cancelled"
    elif signal in _SIGNALS:
        message = f"killed by {_SIGNALS[signal]}, and nothing says why"
    elif code is not None:
        message = f"it ended with exit code {code}, and no line of its log says why"
    else:
        message = "it failed, and nothing says why"
    return Failure(
        failure_class="unknown",
        message=message,
        evidence=status.reason or (echo.line if echo else None),
        step=step,
    )
