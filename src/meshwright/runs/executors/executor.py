"""What starts jobs and says how they are: the one contract that every launcher's executor keeps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from meshwright.errors import ConfigError
from meshwright.exports.jobs import Job, JobText

__all__ = ["Executor", "JobState", "JobStatus", "check_label"]

JobState = Literal[
    "queued",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "timed_out",
    "out_of_memory",
    "preempted",
    "node_failed",
    "never_started",
    "unknown",
]

_OPEN = ("queued", "running", "unknown")
_MOST_LETTERS = 40
"""The shortest limit of all launchers: that of a TrainJob's and a JobSet's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """How a job is, as its launcher says."""

    state: JobState
    """`unknown`: the launcher does not know the job, or says a word that we do not."""
    exit_code: int | None = None
    """As a shell says it: 128 and the signal's number where a signal ended it. None before its end,
    or where the launcher does not tell."""
    reason: str = ""
    """The launcher's own words: why it waits, why it ended."""
    started_s: float | None = None
    """Unix time."""
    ended_s: float | None = None
    nodes: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.state not in _OPEN


class Executor(Protocol):
    """Starts jobs on one launcher. Handles are texts that outlive this process: another one goes on
    from them."""

    @property
    def name(self) -> str:
        """`local`, `slurm`, `k8s`, `bcp`."""

    def check(self) -> None:
        """Return where jobs can be started from here; LauncherError with one clear line
        otherwise."""

    def slots(self, job: Job) -> int | None:
        """Return how many such jobs run here at a time; None: the launcher has a queue for as many
        as there are."""

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        """Return what `submit` would send, to the letter, and the command that would send it;
        nothing is written or asked."""

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        """Start a job and return its handle.

        `directory` is the run's own: stdout.log and stderr.log end there, and what was sent stands
        in `job/`. `label` is unique to study and run; it is the job's name on the launcher.
        LauncherError where it is refused; LauncherSilent where nobody knows: `find` does.
        """

    def find(self, label: str, *, directory: Path) -> str | None:
        """Return the handle of a job that was submitted with this label and directory before,
        perhaps by a process that died meanwhile."""

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return how each job is; few calls for all of them. LauncherSilent where the launcher does
        not answer."""

    def cancel(self, handle: str) -> None:
        """End a job; one that has ended, or is gone, stays as it is."""


def check_label(label: str) -> str:
    """Return a label that every launcher takes as a job's name; ConfigError for others."""
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", label) or len(label) > _MOST_LETTERS:
        raise ConfigError(
            f"label={label}: expected up to {_MOST_LETTERS} lower-case letters, digits and dashes,"
            " the first a letter, the last no dash"
        )
    return label
