"""What follows when a job of a training ends: nothing, the next job, or a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meshwright.platforms.executor import JobState
from meshwright.runs.failures import Failure
from meshwright.runs.watch.restart import Attempt, RestartPolicy, next_start
from meshwright.values.units import counted

__all__ = [
    "Decision",
    "PastJob",
    "decide",
    "jobs_needed",
]

_OPEN: tuple[JobState, ...] = ("queued", "running", "unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class PastJob:
    """One job of a chain, as far as it is known."""

    number: int
    """From 1."""
    state: JobState
    reason: str = ""
    """The launcher's own words."""
    failure: Failure | None = None
    """Of one that ended otherwise than well."""
    last_step: int | None = None
    """The last that its log reports; None where it reports none."""
    saved_step: int | None = None
    """Of the newest whole checkpoint when it ended, whoever wrote that; None: there is none, or
    nobody here can see it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What happens next."""

    action: Literal["submit", "wait", "done", "stop"]
    why: str
    wait_s: float = 0.0
    """Before the next job."""


def decide(
    jobs: Sequence[PastJob],
    *,
    total_steps: int,
    report_every: int = 1,
    most_jobs: int | None = None,
    policy: RestartPolicy | None = None,
) -> Decision:
    """Return what follows; `jobs` are all so far, oldest first.

    A training is done when a job ended well and its log reached the last report that fits into
    `total_steps`, one in `report_every`. A job that ended well before is one whose own limit came:
    the next goes on from its checkpoint. For failures the rules are `watch.restart`'s, which need a
    newer checkpoint between two ends of the same kind. `most_jobs` bounds the jobs in all.
    """
    if not jobs:
        return Decision(action="submit", why="the first job")
    reached = max((job.last_step for job in jobs if job.last_step is not None), default=None)
    if reached is not None and any(
        job.state == "succeeded" and _is_last(job, total_steps, report_every) for job in jobs
    ):
        return Decision(action="done", why=f"step {reached:,} of {total_steps:,} is done")
    last = jobs[-1]
    if last.state in _OPEN:
        return Decision(
            action="wait",
            why=f"job {last.number} is {last.state}{f' ({last.reason})' if last.reason else ''}",
        )
    if last.state == "succeeded" and reached is None:
        return Decision(
            action="stop",
            why=(
                f"job {last.number} ended well, but its log reports no step: nobody can tell how"
                " far it came"
            ),
        )
    following = next_start(
        [_attempt(job, jobs[: place + 1]) for place, job in enumerate(jobs)], policy=policy
    )
    if following.action == "stop":
        return Decision(action="stop", why=f"job {last.number}: {following.why}")
    if most_jobs is not None and len(jobs) >= most_jobs:
        return Decision(
            action="stop",
            why=(
                f"{_count(len(jobs))} of at most {most_jobs} ended, at step {reached or 0:,} of"
                f" {total_steps:,}"
            ),
        )
    return Decision(
        action="submit", why=f"job {last.number}: {following.why}", wait_s=following.wait_s
    )


def _is_last(job: PastJob, total_steps: int, report_every: int) -> bool:
    return job.last_step is not None and job.last_step > total_steps - report_every


def _attempt(job: PastJob, so_far: Sequence[PastJob]) -> Attempt:
    """Return a job in the words of the restart rules; where no checkpoint can be seen, what its log
    reached stands for it."""
    seen = [found.last_step for found in so_far if found.last_step is not None]
    saved = job.saved_step if job.saved_step is not None else max(seen, default=None)
    failure = job.failure
    if job.state in ("succeeded", "timed_out") and (
        failure is None or failure.failure_class == "time_limit"
    ):
        # Without the scheduler's line, which says it of a step or of a job: two limits that were
        # reached are the same way to end.
        message = (
            "the software stopped at its limit"
            if job.state == "succeeded"
            else "the time limit was reached"
        )
        failure = Failure(failure_class="time_limit", message=message, step=job.last_step)
    return Attempt(failure=failure, saved_step=saved, cancelled=job.state == "cancelled")


def _count(jobs: int) -> str:
    return counted(jobs, "job")


def jobs_needed(*, train_s: float, steps_s: int | None) -> int:
    """Jobs that a training takes by prediction, where each has some seconds for its steps; 1
    without a limit.

    Formula:  ceil(train / steps); starts, queues and failures come on top
    Units:    jobs.
    Checked:  tests/runs/training/test_chain.py
    """
    return 1 if steps_s is None else max(1, -int(-train_s // steps_s))
