"""Jobs of a training: sent one behind another, followed, cancelled, gone on with by others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.platforms.executor import Executor, JobStatus
from meshwright.runs.lock import Lock
from meshwright.runs.outcome import Failure, classify, read_run_logs
from meshwright.runs.training.folder import (
    LOGS,
    Decision,
    JobNote,
    PastJob,
    TrainFolder,
    decide,
    last_report,
    newest_checkpoint,
)
from meshwright.runs.training.prepare import Prepared
from meshwright.runs.trial import OWN_TRAINER
from meshwright.values.errors import LauncherSilent

__all__ = ["Launch", "Watched", "past_jobs"]

POLL_S = 2.0
"""Between two looks at a job on this machine; on other launchers ten times as long."""


TOLD_EVERY_S = 15.0
"""Between two lines of how far a followed training is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """A job and how it is."""

    note: JobNote
    handle: str | None
    """None: it was written down and never sent."""
    status: JobStatus
    ended: dict[str, Any] | None = None
    """What was written down at its end."""


def past_jobs(training: TrainFolder, starter: Executor) -> list[Watched]:
    """Return every job that was sent, and how it is; LauncherSilent without an answer."""
    handles: dict[int, str] = {}
    ended: dict[int, dict[str, Any]] = {}
    for event in training.events():
        if event.get("event") == "submitted":
            handles[event["job"]] = event["handle"]
        elif event.get("event") == "ended":
            ended[event["job"]] = event
    open_handles = [handle for number, handle in handles.items() if number not in ended]
    polled = starter.poll(open_handles) if open_handles else {}
    found = []
    for note in training.jobs():
        handle = handles.get(note.number)
        if note.number in ended:
            status = JobStatus.of(ended[note.number]["status"])
        elif handle is None:
            status = JobStatus(state="never_started", reason="it was written down, and never sent")
        else:
            status = polled[handle]
        found.append(Watched(note=note, handle=handle, status=status, ended=ended.get(note.number)))
    return found


def _was_dropped(watched: Watched) -> bool:
    """Whether the launcher dropped it as the job before did not end well: no fault of its own."""
    return watched.note.after is not None and watched.status.state == "never_started"


@dataclass(kw_only=True)
class Launch:
    """The jobs of one training, by the one process that holds its lock."""

    training: TrainFolder
    prepared: Prepared
    starter: Executor
    lock: Lock
    say: Callable[[str], None]
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    last_found: int = 0
    """The last job that others sent before: `most_jobs` counts those behind it."""
    _room: int | None = None
    """Jobs that may still be sent; None: any number."""
    _told_s: float = 0.0
    _told_step: int | None = None

    def recover(self) -> None:
        """Find jobs that a process sent and died before it wrote that down; those that were never
        sent are forgotten."""
        known = {
            event["job"] for event in self.training.events() if event.get("event") == "submitted"
        }
        for note in self.training.jobs():
            if note.number in known:
                continue
            handle = self.starter.find(note.label, directory=self.training.job_folder(note.number))
            if handle is None:
                (self.training.job_folder(note.number) / "job.json").unlink()
            else:
                self._event("submitted", job=note.number, handle=handle, why="found again")

    def next(self) -> Decision:
        """Write down what ended since, and return what follows."""
        jobs = [
            self._past(watched)
            for watched in past_jobs(self.training, self.starter)
            if not _was_dropped(watched)
        ]
        most = self.prepared.request.most_jobs
        found = sum(job.number <= self.last_found for job in jobs)
        self._room = None if most is None else most + found - len(jobs)
        own = self.prepared.software.name == OWN_TRAINER
        return decide(
            jobs,
            total_steps=self.prepared.total_steps,
            report_every=1 if own else self.prepared.settings.log_interval or 1,
            most_jobs=None if most is None else found + most,
        )

    def submit(self, *, why: str) -> list[JobNote]:
        """Send the job that `next` decided on, and on a platform that chains all that are needed
        and allowed behind it."""
        sent: list[JobNote] = []
        after: str | None = None
        first = max((job.number for job in self.training.jobs()), default=0) + 1
        count = self.prepared.at_once(done_steps=self.prepared.saved_steps, most=self._room)
        for number in range(first, first + count):
            note, after = self._send(number, after=after, why=why)
            why = f"behind job {number}"
            sent.append(note)
        return sent

    def follow(self) -> Decision:
        """Stay until the training is done or nobody can go on: one job behind another."""
        while True:
            try:
                decision = self.next()
            except LauncherSilent as error:
                self.say(f"{error}; asked again")
                decision = Decision(action="wait", why="")
            if decision.action in ("done", "stop"):
                self.end_queued(decision)
                event = "finished" if decision.action == "done" else "stopped"
                self._event(event, why=decision.why)
                return decision
            if decision.action == "submit":
                wait = f"; in {decision.wait_s:.0f} s" if decision.wait_s else ""
                self.say(f"{decision.why}{wait}")
                self._sleep(decision.wait_s)
                self.submit(why=decision.why)
            self._tell_progress()
            self._sleep(POLL_S if self.starter.name == "local" else 10 * POLL_S)

    def _tell_progress(self) -> None:
        """Say how far the last job is, now and then, where it went on since."""
        jobs = self.training.jobs()
        if not jobs or self.now() < self._told_s + TOLD_EVERY_S:
            return
        report = last_report(self.training.job_folder(jobs[-1].number))
        if report is not None and report.step is not None and report.step != self._told_step:
            loss = "" if report.loss is None else f", loss {report.loss:.4g}"
            self.say(f"step {report.step:,} of {self.prepared.total_steps:,}{loss}")
            self._told_s, self._told_step = self.now(), report.step

    def end_queued(self, decision: Decision) -> None:
        """Cancel jobs of the chain that still wait once the target is reached."""
        if decision.action != "done":
            return
        for watched in past_jobs(self.training, self.starter):
            if watched.handle is not None and not watched.status.ended:
                self.starter.cancel(watched.handle)
                self._event("cancelled", job=watched.note.number, why="the target is reached")

    def _send(self, number: int, *, after: str | None, why: str) -> tuple[JobNote, str]:
        self.lock.require()
        prepared, limits = self.prepared, self.prepared.limits
        job = prepared.job(words=prepared.after_words(after))
        note = JobNote(
            number=number,
            label=self.training.label(number),
            launcher=prepared.request.launcher,
            nodes=job.nodes,
            gpus=job.num_gpus,
            total_steps=prepared.total_steps,
            time_limit_s=job.time_limit_s,
            stop_s=None if limits is None else limits.framework_s,
            after=after,
        )
        self.training.add_job(note)
        folder = self.training.job_folder(number)
        handle = self.starter.submit(job, directory=folder, label=note.label)
        self._event("submitted", job=number, handle=handle, why=why)
        self.say(f"job {number} was sent: {note.label}, {handle}")
        return note, handle

    def _past(self, watched: Watched) -> PastJob:
        """Return what is known of a job; its end is written down when it is seen first."""
        number, status, ended = watched.note.number, watched.status, watched.ended
        past = PastJob(number=number, state=status.state, reason=status.reason)
        if not status.ended:
            return past
        if ended is not None:
            failure = None if ended["failure"] is None else Failure(**ended["failure"])
            steps = {name: ended[name] for name in ("last_step", "saved_step")}
            return replace(past, failure=failure, **steps)
        logs = read_run_logs([self.training.job_folder(number) / name for name in LOGS])
        last = None if logs.reading is None else logs.reading.last_step
        saved = newest_checkpoint(Path(self.prepared.settings.save_dir or ""))
        past = replace(
            past,
            failure=classify(status, evidence=logs.evidence, reading=logs.reading),
            last_step=last,
            # Of jobs whose end is seen late, a later one may have written the newest.
            saved_step=saved if saved is None or last is None else min(saved, last),
        )
        record = None if past.failure is None else asdict(past.failure)
        self._event(
            "ended",
            job=number,
            status=asdict(status),
            failure=record,
            last_step=past.last_step,
            saved_step=past.saved_step,
        )
        reason = f" ({status.reason})" if status.reason else ""
        self.say(f"job {number} {status.state}{reason} at step {past.last_step or 0:,}")
        return past

    def _event(self, event: str, **values: Any) -> None:
        self.training.add_event(event, at_s=self.now(), **values)

    def _sleep(self, seconds: float) -> None:
        if seconds:
            self.sleep(seconds)
