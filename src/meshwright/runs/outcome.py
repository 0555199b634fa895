"""What a run that trained to its end was measured to do, or why there is nothing to measure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from meshwright.platforms.executor import JobStatus
from meshwright.runs.failures import Evidence, EvidenceReader, Failure, classify, nearest_first
from meshwright.software.log import LogReading, Report, steady_reports, whole_lines
from meshwright.software.log_reader import LogReader

__all__ = [
    "MIN_CUT_SHORT",
    "Measured",
    "RunLogs",
    "RunWork",
    "outcome_of",
    "read_run_logs",
    "usual_report_s",
]

MIN_CUT_SHORT = 5
"""Reports behind the warm-up that a run must have made for its time to count though it did not
reach its end."""
_CUT_SHORT = ("time_limit", "preempted")
"""Ends that say nothing against the steps before them."""
_BLOCK = 2**20
"""Characters that are read at a time."""
_SAME_WORK = 0.1
"""Difference between two figures of one log, rounded to three digits at worst, that are still of
the same work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Figures of one finished run, warm-up left out."""

    step_s: float
    """Median seconds per optimizer step."""
    step_low_s: float
    """The fastest tenth of the steps took at most this."""
    step_high_s: float
    """And nine tenths at most this."""
    tokens_per_s: float
    """Of all chips together."""
    samples_per_s: float
    steps: int
    """Steps that the figures stand on."""
    peak_allocated_bytes: float | None = None
    """Of the rank that reports; None where the log does not say."""
    peak_reserved_bytes: float | None = None
    final_loss: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunWork:
    """What one step of a run is: it turns rates into times, and shows where a log is of other work
    than was asked for."""

    seq_len: int
    gbs: int
    num_chips: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLogs:
    """What a run's logs say."""

    reading: LogReading | None = None
    """None where no line is of a software that is known."""
    evidence: tuple[Evidence, ...] = ()
    """Of why it failed, nearest to the cause first."""


def read_run_logs(paths: Sequence[Path]) -> RunLogs:
    """Read the logs of one run in little memory, whatever their size; a file that is not there, or
    can't be read, says nothing."""
    reader = LogReader()
    evidence: list[Evidence] = []
    before = 0
    for path in paths:
        found = EvidenceReader(lines=before)
        for block in whole_lines(_chunks(path)):
            reader.feed(block)
            found.feed(block)
        before = found.lines
        evidence.extend(found.evidence())
    return RunLogs(reading=reader.reading(), evidence=nearest_first(evidence))


def _chunks(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as handle:
            while chunk := handle.read(_BLOCK):
                yield chunk
    except OSError:
        return


def outcome_of(
    status: JobStatus, *, logs: RunLogs, work: RunWork, silent_s: float | None = None
) -> Measured | Failure | None:
    """Return what a run measured, or why it failed; None where it goes on.

    A run that its time limit, its scheduler or its user ended is measured where it had made
    MIN_CUT_SHORT reports behind its warm-up.
    """
    reading = logs.reading
    usual_s = usual_report_s(reading, work)
    failure = classify(
        status, evidence=logs.evidence, reading=reading, silent_s=silent_s, usual_s=usual_s
    )
    if failure is None:
        return None if status.state != "succeeded" else _measured(reading, work)
    cut_short = failure.failure_class in _CUT_SHORT or (
        status.state == "cancelled" and failure.failure_class == "unknown"
    )
    if not cut_short or reading is None or not all(map(math.isfinite, reading.loss[-1:])):
        return failure
    enough = len(steady_reports(reading.reports)) >= MIN_CUT_SHORT
    return _measured(reading, work) if enough else failure


def usual_report_s(reading: LogReading | None, work: RunWork) -> float | None:
    """Return the usual time between two reports of a log; None before there are two."""
    reports = reading.reports if reading else ()
    seconds = [found for report in reports if (found := _seconds(report, work)) is not None]
    steps = [report.step for report in reports if report.step is not None]
    if len(seconds) < 2:
        return None
    gaps = [later - earlier for earlier, later in pairwise(steps) if later > earlier]
    return statistics.median(seconds) * (statistics.median(gaps) if gaps else 1)


def _seconds(report: Report, work: RunWork) -> float | None:
    return report.seconds(seq_len=work.seq_len, gbs=work.gbs, num_chips=work.num_chips)


def _measured(reading: LogReading | None, work: RunWork) -> Measured | Failure:
    if reading is None:
        words = "it ended well, with no line of a software that is known"
        return Failure(failure_class="unknown", message=words)
    if not any(report.has_rate for report in reading.reports):
        words = f"it ended well, with no step time in a log of {reading.framework}"
        return Failure(failure_class="unknown", message=words, step=reading.last_step)
    steady = steady_reports(reading.reports)
    if not steady:
        words = "it reported one step, which is warm-up; let it run longer"
        return Failure(failure_class="unknown", message=words, step=reading.last_step)
    if (strange := _other_work(steady, work)) is not None:
        return Failure(failure_class="config_error", message=strange, step=reading.last_step)
    if all(report.skipped or report.nan for report in steady):
        words = "no step behind the warm-up changed the weights: every one overflowed"
        return Failure(failure_class="nan_loss", message=words, step=reading.last_step)
    times = sorted(found for report in steady if (found := _seconds(report, work)) is not None)
    step_s = statistics.median(times)
    tenths = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times
    return Measured(
        step_s=step_s,
        step_low_s=tenths[0],
        step_high_s=tenths[-1],
        tokens_per_s=work.gbs * work.seq_len / step_s,
        samples_per_s=work.gbs / step_s,
        steps=len(times),
        peak_allocated_bytes=reading.peak_allocated_bytes,
        peak_reserved_bytes=reading.peak_reserved_bytes,
        final_loss=next((loss for loss in reversed(reading.loss) if math.isfinite(loss)), None),
    )


def _other_work(steady: Sequence[Report], work: RunWork) -> str | None:
    """Say that a log is of another batch than the run was to have; None where nothing says so."""
    last, tokens = steady[-1], work.gbs * work.seq_len
    if last.batch is not None and not any(
        abs(last.batch / whole - 1) < _SAME_WORK for whole in (work.gbs, tokens)
    ):
        return (
            f"its log counts a batch of {last.batch:g}, the run was to have {work.gbs} sequences"
            f" ({tokens} tokens)"
        )
    counted = (last.tokens_per_s or 0.0) * (last.step_s or 0.0)
    if counted and abs(counted / tokens - 1) > _SAME_WORK:
        return f"its log counts {counted:.0f} tokens a step, the run was to have {tokens}"
    return None
