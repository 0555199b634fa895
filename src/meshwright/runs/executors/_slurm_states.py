"""Slurm's words for how a job is, read through one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from meshwright.runs.executors.executor import JobState, JobStatus

__all__ = [
    "SACCT_FIELDS",
    "SQUEUE_FIELDS",
    "STATES",
    "status_of",
    "status_of_sacct",
    "status_of_squeue",
]

STATES: Mapping[str, JobState] = MappingProxyType(
    {
        "PENDING": "queued",
        "CONFIGURING": "queued",
        "REQUEUED": "queued",
        "REQUEUE_FED": "queued",
        "REQUEUE_HOLD": "queued",
        "RESV_DEL_HOLD": "queued",
        "SPECIAL_EXIT": "queued",
        "EXPEDITING": "queued",
        "POWER_UP_NODE": "queued",
        "RUNNING": "running",
        "COMPLETING": "running",
        "RESIZING": "running",
        "SIGNALING": "running",
        "STAGE_OUT": "running",
        "STOPPED": "running",
        "SUSPENDED": "running",
        "UPDATE_DB": "running",
        "COMPLETED": "succeeded",
        "FAILED": "failed",
        "CANCELLED": "cancelled",
        "REVOKED": "cancelled",
        "TIMEOUT": "timed_out",
        "DEADLINE": "timed_out",
        "OUT_OF_MEMORY": "out_of_memory",
        "PREEMPTED": "preempted",
        "NODE_FAIL": "node_failed",
        "BOOT_FAIL": "node_failed",
        "LAUNCH_FAILED": "never_started",
        "RECONFIG_FAIL": "never_started",
        "UNKNOWN": "unknown",
    }
)
"""Every state of squeue's and sacct's manuals, Slurm 22.05 to 25.05; any other word reads as
UNKNOWN."""

SQUEUE_FIELDS = ("JobArrayID", "State", "Reason", "StartTime", "EndTime", "NodeList", "exit_code")
SACCT_FIELDS = ("JobID", "State", "Reason", "Start", "End", "NodeList", "ExitCode")
_NEVER = ("DependencyNeverSatisfied",)
"""Reasons of a job that Slurm took out of the queue itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One job as Slurm tells it."""

    state: str
    reason: str
    start: str
    end: str
    nodes: tuple[str, ...]
    exit_code: int


def status_of_squeue(fields: Sequence[str], nodes: tuple[str, ...]) -> JobStatus:
    """Read SQUEUE_FIELDS; times are seconds, the exit code is a wait status."""
    _, state, reason, start, end, _, raw = fields
    return status_of(
        _Row(
            state=state,
            reason=reason,
            start=start,
            end=end,
            nodes=nodes,
            exit_code=_shell_code(raw),
        )
    )


def status_of_sacct(fields: Sequence[str], nodes: tuple[str, ...]) -> JobStatus:
    """Read SACCT_FIELDS; `CANCELLED by 1000` names who, and the exit code is CODE:SIGNAL."""
    _, state, reason, start, end, _, raw = fields
    word, _, by = state.partition(" ")
    return status_of(
        _Row(
            state=word,
            reason=f"{state}" if by else reason,
            start=start,
            end=end,
            nodes=nodes,
            exit_code=_shell_code(raw),
        )
    )


def status_of(row: _Row) -> JobStatus:
    """Return what the words mean. Where a job has no nodes it has not run: Slurm gives such a job
    that was cancelled a start too."""
    state = STATES.get(row.state, "unknown")
    ended = state not in ("queued", "running", "unknown")
    ran = bool(row.nodes)
    if ended and not ran and (row.reason in _NEVER or row.state == "DEADLINE"):
        state = "never_started"
    words = [] if row.state in ("PENDING", "RUNNING", "COMPLETED") else [row.state]
    words += [] if row.reason in ("", "None", *words) else [row.reason]
    told = state in ("succeeded", "failed", "out_of_memory") or (ended and row.exit_code > 0)
    return JobStatus(
        state=state,
        exit_code=row.exit_code if told else None,
        reason=(
            row.reason if len(words) == 2 and words[1].startswith(words[0]) else ": ".join(words)
        ),
        started_s=_seconds(row.start) if ran and state != "queued" else None,
        ended_s=_seconds(row.end) if ended else None,
        nodes=row.nodes,
    )


def _shell_code(text: str) -> int:
    """Return CODE:SIGNAL, or a wait status, as a shell says it: 128 and the signal's number where a
    signal ended it."""
    if ":" in text:
        code, _, number = text.partition(":")
        status = int(code) << 8 | int(number)
    else:
        status = int(text) if text.isdecimal() else 0
    return 128 + (status & 127) if status & 127 else status >> 8


def _seconds(text: str) -> float | None:
    """Read SLURM_TIME_FORMAT=%s; a time that is not known is a word."""
    return float(text) if text.isdecimal() and int(text) else None
