"""A training's folder, and what its jobs so far tell to do next."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from meshwright.platforms.executor import JobState
from meshwright.platforms.given import load_profile
from meshwright.platforms.hidden import hide
from meshwright.runs.outcome import Failure, read_run_logs
from meshwright.runs.store import append_line, read_form, read_lines, refuse_foreign, write_whole
from meshwright.runs.training.request import TrainRequest
from meshwright.runs.watch.restart import Attempt, RestartPolicy, next_start
from meshwright.software.log import LogReading, Report
from meshwright.software.log_reader import read_log
from meshwright.values.errors import ConfigError, StudyError
from meshwright.values.hardware.profile import Profile, profile_to_bytes
from meshwright.values.text import write_yaml
from meshwright.values.units import counted

__all__ = [
    "LOGS",
    "Decision",
    "JobNote",
    "PastJob",
    "TrainFolder",
    "decide",
    "find_trainings",
    "jobs_needed",
    "label_of",
    "last_report",
    "newest_checkpoint",
    "open_folder",
    "read_folder",
    "read_progress",
    "train_id_of",
]

FORM = 1
"""Version of the directory's form."""
LOGS = ("stdout.log", "stderr.log")
_TRAIN, _PLAN, _MACHINE = "train.yaml", "plan.json", "machine.json"
_JOBS, _EVENTS, _JOB = "jobs", "events.jsonl", "job.json"
_OURS = {_TRAIN, _PLAN, _JOBS, _EVENTS, _MACHINE, "lock", "checkpoints"}
_STAYS = ("plan", "software", "program", "settings", "save_dir")
"""What may not change between two jobs of one training."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobNote:
    """One job as it was sent."""

    number: int
    label: str
    """Its name on the launcher."""
    launcher: str
    nodes: int
    gpus: int
    total_steps: int
    """Of the training."""
    time_limit_s: int | None
    stop_s: int | None
    """After which the software ends by itself."""
    after: str | None = None
    """The handle of the job that it waits for, where the launcher starts it then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainFolder:
    """The directory of a training, opened."""

    folder: Path
    train_id: str
    request: TrainRequest

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie unless the user names another place."""
        return self.folder.absolute() / "checkpoints"

    @property
    def plan(self) -> dict[str, Any]:
        """The plan, as `plan --json` prints one."""
        try:
            found: dict[str, Any] = json.loads((self.folder / _PLAN).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StudyError(f"{self.folder / _PLAN}: cannot be read ({error})") from None
        return found

    @property
    def machine(self) -> Profile | None:
        """What this machine's processors were probed to do, where the plan is for them."""
        path = self.folder / _MACHINE
        return load_profile(path) if path.exists() else None

    def job_folder(self, number: int) -> Path:
        """Where a job's files are."""
        return self.folder / _JOBS / str(number)

    def label(self, number: int) -> str:
        """Name a job for the launcher."""
        return label_of(self.train_id, number)

    def jobs(self) -> tuple[JobNote, ...]:
        """Return every job that was to be sent, in order."""
        paths = (self.folder / _JOBS).glob(f"*/{_JOB}")
        return tuple(sorted((_read_job(path) for path in paths), key=lambda job: job.number))

    def add_job(self, note: JobNote) -> None:
        """Write down a job before it is sent."""
        folder = self.job_folder(note.number)
        _make(folder)
        write_whole(folder / _JOB, json.dumps(asdict(note), indent=1) + "\n")

    def add_event(self, event: str, *, at_s: float, **values: Any) -> None:
        """Append what happened, on the disk before this returns."""
        line = hide(json.dumps({"event": event, "at_s": at_s, **values})) + "\n"
        append_line(self.folder / _EVENTS, line)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield what happened, oldest first."""
        return read_lines(self.folder / _EVENTS)

    def check(self, request: TrainRequest) -> None:
        """Return where a request is of this training; StudyError otherwise."""
        old, new = self.request.to_dict(), request.to_dict()
        for key in _STAYS:
            if old.get(key) != new.get(key):
                raise StudyError(
                    f"{self.folder}: holds a training with {key}={old.get(key)!r}, and"
                    f" {new.get(key)!r} is asked for now; give another folder (-o), or ask for the"
                    " same again"
                )

    def with_request(self, request: TrainRequest) -> TrainFolder:
        """Write another request of this training down, where it differs."""
        self.check(request)
        if self.request.to_dict() != request.to_dict():
            write_whole(self.folder / _TRAIN, _train_text(self.train_id, request))
        return replace(self, request=request)


def train_id_of(folder: Path, request: TrainRequest) -> str:
    """Return what tells a training from all others: who asks for what, where. A dry run and the
    start behind it have the same."""
    what = {key: value for key, value in request.to_dict().items() if key in _STAYS}
    facts = [os.uname().nodename, os.getuid(), str(folder.absolute()), what]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def label_of(train_id: str, number: int) -> str:
    """Name a job for its launcher."""
    return f"mw-{train_id[:8]}-{number}"


def open_folder(
    folder: Path, request: TrainRequest, *, plan: dict[str, Any], machine: Profile | None
) -> TrainFolder:
    """Begin a training in a folder; StudyError where it holds something else."""
    refuse_foreign(folder, _OURS, f"no {_TRAIN}, so it is no training")
    begun = TrainFolder(folder=folder, train_id=train_id_of(folder, request), request=request)
    _make(folder)
    write_whole(folder / _PLAN, json.dumps(plan, indent=1) + "\n")
    if machine is not None:
        write_whole(folder / _MACHINE, profile_to_bytes(machine, form="json").decode())
    write_whole(folder / _TRAIN, _train_text(begun.train_id, request))
    return begun


def read_folder(folder: Path) -> TrainFolder | None:
    """Open the training of a folder; None where there is none."""
    path = folder / _TRAIN
    if folder.is_file():
        return None
    content = read_form(path, key="train", what="a training", form=FORM)
    if content is None:
        return None
    try:
        request = TrainRequest.of(content["request"])
        return TrainFolder(folder=folder, train_id=str(content["train_id"]), request=request)
    except (KeyError, TypeError, ConfigError) as error:
        raise StudyError(f"{path}: no training as `meshwright train` writes it ({error})") from None


def find_trainings(root: Path, *, depth: int = 3) -> list[TrainFolder]:
    """Return every training below a folder, or in it, by name."""
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    found = []
    for levels in range(depth + 1):
        for path in sorted(root.glob("/".join(["*"] * levels + [_TRAIN]))):
            training = read_folder(path.parent)
            found += [] if training is None else [training]
    return found


def _train_text(train_id: str, request: TrainRequest) -> str:
    return write_yaml({"train": FORM, "train_id": train_id, "request": request.to_dict()})


def _read_job(path: Path) -> JobNote:
    try:
        return JobNote(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise StudyError(f"{path}: cannot be read ({error})") from None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"{folder}: cannot be made ({error.strerror or error})") from None


_OWN = re.compile(r"step-(\d+)")
_TRACKER = "latest_checkpointed_iteration.txt"
"""Of Megatron-LM and Megatron-Bridge: written when a checkpoint is whole."""
_OWN_FACTS = "run.json"
_TAIL_BYTES = 1 << 16


def read_progress(job: Path) -> LogReading | None:
    """Read the logs in a job's folder."""
    return read_run_logs([job / name for name in LOGS]).reading


def last_report(job: Path) -> Report | None:
    """Return the last report of a job's log, from its end alone: logs of weeks are long."""
    try:
        with (job / LOGS[0]).open("rb") as handle:
            handle.seek(max(0, handle.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    reading = read_log(text)
    return reading.reports[-1] if reading is not None and reading.reports else None


def newest_checkpoint(folder: Path) -> int | None:
    """Return the steps of the newest whole checkpoint; None where the folder can't be seen from
    here.

    Known are the embedded trainer's, which carry their name when they are whole, and Megatron's, by
    its tracker. 0: there is none.
    """
    if not folder.is_dir():
        return 0 if folder.parent.is_dir() else None
    steps = [
        int(match[1])
        for child in folder.iterdir()
        if (match := _OWN.fullmatch(child.name)) and (child / _OWN_FACTS).is_file()
    ]
    try:
        word = (folder / _TRACKER).read_text(encoding="utf-8").strip()
    except OSError:
        word = ""
    steps += [int(word)] if word.isdecimal() else []
    unknown = not steps and any(not one.name.startswith("part-") for one in folder.iterdir())
    return None if unknown else max(steps, default=0)


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
    ends = (job.last_step or 0 for job in jobs if job.state == "succeeded")
    if reached is not None and any(step > total_steps - report_every for step in ends):
        return Decision(action="done", why=f"step {reached:,} of {total_steps:,} is done")
    last = jobs[-1]
    if last.state in _OPEN:
        reason = f" ({last.reason})" if last.reason else ""
        return Decision(action="wait", why=f"job {last.number} is {last.state}{reason}")
    if last.state == "succeeded" and reached is None:
        why = "ended well, but its log reports no step: nobody can tell how far it came"
        return Decision(action="stop", why=f"job {last.number} {why}")
    attempts = [_attempt(job, jobs[: place + 1]) for place, job in enumerate(jobs)]
    following = next_start(attempts, policy=policy)
    why = f"job {last.number}: {following.why}"
    if following.action == "stop":
        return Decision(action="stop", why=why)
    if most_jobs is not None and len(jobs) >= most_jobs:
        ended = f"{counted(len(jobs), 'job')} of at most {most_jobs} ended"
        why = f"{ended}, at step {reached or 0:,} of {total_steps:,}"
        return Decision(action="stop", why=why)
    return Decision(action="submit", why=why, wait_s=following.wait_s)


def _attempt(job: PastJob, so_far: Sequence[PastJob]) -> Attempt:
    """Return a job in the words of the restart rules; where no checkpoint can be seen, what its log
    reached stands for it."""
    seen = [found.last_step for found in so_far if found.last_step is not None]
    saved = job.saved_step if job.saved_step is not None else max(seen, default=None)
    failure = job.failure
    if job.state in _AT_LIMIT and (failure is None or failure.failure_class == "time_limit"):
        message = _AT_LIMIT[job.state]
        failure = Failure(failure_class="time_limit", message=message, step=job.last_step)
    return Attempt(failure=failure, saved_step=saved, cancelled=job.state == "cancelled")


_AT_LIMIT: Mapping[JobState, str] = {
    "succeeded": "the software stopped at its limit",
    "timed_out": "the time limit was reached",
}
"""Without the scheduler's line, which says it of a step or of a job: two limits that were reached
are the same way to end."""


def jobs_needed(*, train_s: float, steps_s: int | None) -> int:
    """Jobs that a training takes by prediction, where each has some seconds for its steps; 1
    without a limit.

    Formula:  ceil(train / steps); starts, queues and failures come on top
    Units:    jobs.
    Checked:  tests/runs/training/test_chain.py
    """
    return 1 if steps_s is None else max(1, -int(-train_s // steps_s))
