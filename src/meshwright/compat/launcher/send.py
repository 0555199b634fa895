"""Jobs of a line, written, run where we are, or sent one behind the other."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from meshwright.compat.launcher.jobs import Step
from meshwright.compat.launcher.line import Line
from meshwright.platforms.executor import Executor, JobStatus
from meshwright.platforms.files import make_folder, put_file
from meshwright.platforms.job import JobText
from meshwright.platforms.registry import job_text

__all__ = ["Sent", "put_jobs", "put_line", "run_here", "send", "written_jobs"]

_POLL_S = 20.0
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A job as it is sent."""

    step: Step
    folder: Path
    text: JobText


def written_jobs(line: Line, steps: Sequence[Step], folder: Path) -> list[Sent]:
    """Return every job's text and its folder; nothing is written."""
    return [
        Sent(
            step=one,
            folder=folder / f"{number}-{one.name}",
            text=job_text(one.job, launcher=line.platform.launcher),
        )
        for number, one in enumerate(steps, start=1)
    ]


def put_line(words: Sequence[str], folder: Path) -> None:
    """Write the line itself, as NVIDIA's launcher does."""
    make_folder(folder)
    line = " \\\n  ".join(["meshwright launcher", *words])
    put_file(folder / "launcher_cmd.log", f"{line}\n", force=True)


def put_jobs(jobs: Sequence[Sent]) -> None:
    """Write the jobs."""
    for job in jobs:
        make_folder(job.folder)
        put_file(job.folder / job.text.file_name, job.text.text, force=True)


def run_here(jobs: Sequence[Sent], say: Say) -> int:
    """Run the jobs one behind the other on the nodes that we have; return the code of the first
    that fails, 0 where none does. Their output is ours."""
    for job in jobs:
        say(f"{job.step.name}: {job.step.does}")
        code = _run(["bash", job.text.file_name], job.folder)
        if code:
            say(f"{job.step.name} ended with {code}; the same line goes on there")
            return code
    return 0


def _run(words: Sequence[str], folder: Path) -> int:
    """Run a program, and hand the signals on that ask it to end, so that it may save."""
    child = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL)

    def hand_on(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    before = signal.signal(signal.SIGTERM, hand_on)
    try:
        code = child.wait()
    except KeyboardInterrupt:  # the terminal has told the program as well
        child.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return 128 - code if code < 0 else code


def send(line: Line, jobs: Sequence[Sent], say: Say) -> int:
    """Send the jobs: on Slurm all at once, each behind the one before; elsewhere each when the one
    before has ended well. Return 0, or 1 where one failed.

    A job that was sent before and still runs is followed; data that is done is not made again.
    """
    starter = line.platform.executor()
    starter.check()
    if starter.name == "slurm":
        return _chain(starter, jobs, say)
    for job in jobs:
        status = _followed(starter, job, say)
        if status is not None and status.state != "succeeded":
            say(f"{job.step.name} is {status.state}: {status.reason or 'no reason is told'}")
            return 1
    return 0


def _chain(starter: Executor, jobs: Sequence[Sent], say: Say) -> int:
    after = None
    for job in jobs:
        known = starter.find(job.step.job.name, directory=job.folder)
        status = None if known is None else starter.poll([known])[known]
        if known is not None and status is not None and not _again(job, status):
            say(f"{job.step.name}: job {known} is {status.state} already")
            after = None if status.ended else known
            continue
        behind = (f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes") if after else ()
        asked = replace(job.step.job, words=(*job.step.job.words, *behind))
        after = starter.submit(asked, directory=job.folder, label=job.step.job.name)
        say(f"{job.step.name}: job {after}" + (f", behind {behind[0][21:]}" if behind else ""))
    return 0


def _followed(starter: Executor, job: Sent, say: Say) -> JobStatus | None:
    """Send a job, or find it, and follow it to its end."""
    label = job.step.job.name
    handle = starter.find(label, directory=job.folder)
    if handle is not None and _again(job, starter.poll([handle])[handle]):
        handle = None
    if handle is None:
        handle = starter.submit(job.step.job, directory=job.folder, label=label)
        say(f"{job.step.name}: sent, {handle.partition(':')[0]}")
    last = None
    while True:
        status = starter.poll([handle])[handle]
        if status.state != last:
            say(f"{job.step.name}: {status.state} {status.reason}".rstrip())
            last = status.state
        if status.ended:
            return status
        time.sleep(float(os.environ.get("MESHWRIGHT_POLL_S", _POLL_S)))


def _again(job: Sent, status: JobStatus) -> bool:
    """Whether an earlier job of that name is done with: one that failed, or a training that its
    limit ended, which goes on from its checkpoint."""
    if not status.ended:
        return False
    return status.state != "succeeded" or not job.step.is_data
