"""How a run ended: what one that trained to its end was measured to do, or why another did not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Literal, cast, get_args

from meshwright.platforms.executor import JobState, JobStatus
from meshwright.runs.counts import (
    RunWork,
    cut_short,
    older_than,
    timed_steps,
    too_fast,
    too_few,
)
from meshwright.runs.measured.cells import Rule, read_rules
from meshwright.runs.waiting import NameReader
from meshwright.software.log import (
    LogReading,
    Report,
    lines_of,
    steady_reports,
    whole_lines,
    without_rank,
)
from meshwright.software.log_reader import LogReader
from meshwright.values.errors import UnknownNameError

__all__ = [
    "FAILURE_CLASSES",
    "START_LIMIT_S",
    "TIERS",
    "Evidence",
    "EvidenceReader",
    "Failure",
    "FailureClass",
    "Measured",
    "RunLogs",
    "Tier",
    "classify",
    "hang_limit_s",
    "outcome_of",
    "read_run_logs",
    "usual_report_s",
]

FailureClass = Literal[
    "cuda_oom",
    "host_oom",
    "collective_timeout",
    "hang",
    "config_error",
    "nan_loss",
    "time_limit",
    "preempted",
    "never_started",
    "node_failure",
    "launcher_error",
    "refused",
    "unresolved_node",
    "unknown",
]
FAILURE_CLASSES: tuple[FailureClass, ...] = get_args(FailureClass)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A class, a sentence, and the line of the log or the scheduler's word that says so."""

    failure_class: FailureClass
    message: str
    evidence: str | None = None
    step: int | None = None
    """The last step that was seen; None where there was none."""

    def __post_init__(self) -> None:
        if self.failure_class not in FAILURE_CLASSES:
            raise UnknownNameError("failure class", str(self.failure_class), FAILURE_CLASSES)


Tier = Literal["cause", "exception", "peer", "scheduler", "echo"]
"""How near to the cause a line is, nearest first: it names the cause; it is an exception that ended
a process; a rank waited in vain for another; the scheduler ended the run; something says that
something failed."""
TIERS: tuple[Tier, ...] = get_args(Tier)
_LONGEST = 4096
"""Characters of a line that are looked at; what says why stands at its front."""
_SHOWN = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One line that says something."""

    failure_class: FailureClass
    tier: Tier
    message: str
    line: str
    """As it was written, without colours, cut after 300 characters."""
    at: int
    """Its number among the lines of its log: of two of a tier the earlier is nearer."""

    @property
    def nearness(self) -> tuple[int, bool]:
        """The less, the nearer to the cause: in a tier, what has a class is before others."""
        return TIERS.index(self.tier), self.failure_class == "unknown"

    def failure(self, *, step: int | None = None) -> Failure:
        """Return the failure that it tells of."""
        return Failure(
            failure_class=self.failure_class, message=self.message, evidence=self.line, step=step
        )


_Patterns = Iterable[tuple[tuple[str, ...], Rule]]


@cache
def _patterns() -> _Patterns:
    """`runs/failure_patterns.csv`, each with the words of which a line holds one; of patterns that
    match one line, the first holds."""
    rules = read_rules("failure_patterns", folder="runs").rules
    return tuple((tuple(rule["words"].split("|")), rule) for rule in rules)


@dataclass(slots=True)
class EvidenceReader:
    """Reads a log block by block, and keeps the first line of each class and tier."""

    lines: int = 0
    found: dict[tuple[FailureClass, Tier], Evidence] = field(default_factory=dict)

    def feed(self, block: str) -> None:
        """Read a block of whole lines."""
        small = block.lower()
        patterns = [(words, rule) for words, rule in _patterns() if any(w in small for w in words)]
        if not patterns:
            self.lines += block.count("\n")
            return
        for line in lines_of(block):
            self._line(line, patterns)
            self.lines += 1

    def _line(self, line: str, patterns: _Patterns) -> None:
        small = without_rank(line[:_LONGEST]).lower()
        for words, rule in patterns:
            if any(word in small for word in words) and rule.pattern.search(small):
                failure_class = cast("FailureClass", rule["failure_class"])
                tier = cast("Tier", rule["tier"])
                found = Evidence(
                    failure_class=failure_class,
                    tier=tier,
                    message=rule["message"],
                    line=line.strip()[:_SHOWN],
                    at=self.lines,
                )
                self.found.setdefault((failure_class, tier), found)
                return

    def evidence(self) -> tuple[Evidence, ...]:
        """Return what was found, nearest to the cause first."""
        return nearest_first(self.found.values())


def nearest_first(found: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Sort by tier and class, then the earlier line."""
    return tuple(sorted(found, key=lambda one: (*one.nearness, one.at)))


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
        return by_tier["cause"].failure(step=step)
    if status.state in _BY_STATE:
        return _of_status(*_BY_STATE[status.state], status, step)
    if (no_number := _no_number(reading)) is not None:
        return no_number
    for tier in ("exception", "peer"):
        if tier in by_tier:
            return by_tier[tier].failure(step=step)
    if hung:
        assert silent_s is not None
        return _hang(silent_s, usual_s, step)
    if "scheduler" in by_tier:
        return by_tier["scheduler"].failure(step=step)
    if status.state == "timed_out":
        return _of_status("time_limit", "the time limit was reached", status, step)
    return _of_exit(status, by_tier.get("echo"), step)


def hang_limit_s(usual_s: float | None) -> float:
    """Return for how long a log may be silent before its run is taken to hang; `usual_s` is the
    usual time between two reports."""
    return START_LIMIT_S if usual_s is None else max(HANG_LEAST_S, HANG_FACTOR * usual_s)


def _of_status(
    failure_class: FailureClass, message: str, status: JobStatus, step: int | None
) -> Failure:
    return Failure(
        failure_class=failure_class, message=message, evidence=status.reason or None, step=step
    )


def _no_number(reading: LogReading | None) -> Failure | None:
    """The last loss that was told is none."""
    reports = reading.reports if reading else ()
    told = [(report.loss, report.step) for report in reports if report.loss is not None]
    if not told or math.isfinite(told[-1][0]):
        return None
    loss, step = next(one for one in told if not math.isfinite(one[0]))
    words = f"loss {loss}" if step is None else f"loss {loss} at step {step}"
    message = "the loss became no number"
    return Failure(failure_class="nan_loss", message=message, evidence=words, step=step)


def _hang(silent_s: float, usual_s: float | None, step: int | None) -> Failure:
    usual = "before the first step"
    if usual_s is not None:
        usual = f"where a report usually takes {usual_s:.3g} s"
    message = f"no progress for {silent_s:.0f} s {usual}"
    return Failure(failure_class="hang", message=message, step=step)


def _of_exit(status: JobStatus, echo: Evidence | None, step: int | None) -> Failure:
    """Nobody says why: give what there is, and no more."""
    if echo is not None and echo.failure_class != "unknown":
        return echo.failure(step=step)
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
    evidence = status.reason or (echo.line if echo else None)
    return Failure(failure_class="unknown", message=message, evidence=evidence, step=step)


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
    """Reports that the figures stand on."""
    timed_steps: int | None = None
    """Steps that these reports are of; None in records of older versions."""
    peak_allocated_bytes: float | None = None
    """Of the rank that reports; None where the log does not say."""
    peak_reserved_bytes: float | None = None
    final_loss: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLogs:
    """What a run's logs say."""

    reading: LogReading | None = None
    """None where no line is of a software that is known."""
    evidence: tuple[Evidence, ...] = ()
    """Of why it failed, nearest to the cause first."""
    stale: str | None = None
    """That they are older than the run's configuration, in words."""
    unresolved: Failure | None = None
    """A node whose name was asked for in vain."""


def read_run_logs(paths: Sequence[Path], *, configs: Iterable[Path] = ()) -> RunLogs:
    """Read the logs of one run in little memory, whatever their size; a file that is not there, or
    can't be read, says nothing. `configs` are the files that the run was made from."""
    reader, names = LogReader(), NameReader()
    evidence: list[Evidence] = []
    before = 0
    for path in paths:
        found = EvidenceReader(lines=before)
        for block in whole_lines(_chunks(path)):
            reader.feed(block)
            found.feed(block)
            names.feed(block)
        before = found.lines
        evidence.extend(found.evidence())
    stale = older_than(paths, configs)
    return RunLogs(
        reading=reader.reading(),
        evidence=nearest_first(evidence),
        stale=stale,
        unresolved=_unresolved(names),
    )


def _unresolved(names: NameReader) -> Failure | None:
    found = names.in_vain()
    if found is None:
        return None
    return Failure(failure_class="unresolved_node", message=found[0], evidence=found[1][:_SHOWN])


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

    What is no result by runs/counts.py is a failure of the class `refused`. A run that its time
    limit, its scheduler or its user ended is measured where it had made enough steps.
    """
    reading = logs.reading
    if logs.unresolved is not None and status.state != "succeeded" and not _reports(reading):
        return logs.unresolved
    usual_s = usual_report_s(reading, work)
    failure = classify(
        status, evidence=logs.evidence, reading=reading, silent_s=silent_s, usual_s=usual_s
    )
    if failure is None:
        return None if status.state != "succeeded" else _measured(logs, work)
    was_ended = failure.failure_class in _CUT_SHORT or (
        status.state == "cancelled" and failure.failure_class == "unknown"
    )
    if not was_ended or reading is None or not all(map(math.isfinite, reading.loss[-1:])):
        return failure
    if too_few(timed_steps(reading.reports, steady_reports(reading.reports))) is not None:
        return failure
    return _measured(logs, replace(work, steps=None))


def _reports(reading: LogReading | None) -> bool:
    """Whether a step was told."""
    return reading is not None and reading.last_step is not None


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


def _measured(logs: RunLogs, work: RunWork) -> Measured | Failure:
    reading = logs.reading
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
    step_s, covered = statistics.median(times), timed_steps(reading.reports, steady)
    why = (
        logs.stale
        or cut_short(reading.reports, work.steps)
        or too_few(covered)
        or too_fast(step_s, work.least_step_s)
    )
    if why is not None:
        return Failure(failure_class="refused", message=why, step=reading.last_step)
    tenths = statistics.quantiles(times, n=10, method="inclusive") if len(times) > 1 else times
    return Measured(
        step_s=step_s,
        step_low_s=tenths[0],
        step_high_s=tenths[-1],
        tokens_per_s=work.gbs * work.seq_len / step_s,
        samples_per_s=work.gbs / step_s,
        steps=len(times),
        timed_steps=covered,
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
