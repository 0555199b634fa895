"""A training from a command: begun or gone on with, looked at, ended."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright.runs.lock import locked
from meshwright.runs.record import of_plain
from meshwright.runs.training.folder import (
    Decision,
    TrainFolder,
    find_trainings,
    newest_checkpoint,
    open_folder,
    read_folder,
    read_progress,
    train_id_of,
)
from meshwright.runs.training.launch import Launch, Watched, past_jobs
from meshwright.runs.training.prepare import Prepared, launcher_of, prepare
from meshwright.runs.training.request import TrainRequest
from meshwright.search.plan import search_problem
from meshwright.search.problem import Asked, Problem, ask
from meshwright.search.quote import quotes
from meshwright.search.quote_record import (
    quote_record,
)
from meshwright.search.refine import (
    requote,
    setting_of,
)
from meshwright.search.result import PlanResult
from meshwright.values.errors import (
    CannotExpress,
    ConfigError,
    LauncherSilent,
    LayoutError,
    MeshwrightError,
)
from meshwright.values.hardware.profile import Profile

__all__ = [
    "NothingFits",
    "Start",
    "TrainState",
    "begin",
    "cancel_training",
    "follow_logs",
    "list_trainings",
    "start_training",
    "state_of",
    "training_in",
]

_TRIED = 20
"""Plans that the software is asked about, best first."""


class NothingFits(MeshwrightError):
    """No layout fits, or the software runs none of the best; the search's result says why."""

    def __init__(self, result: PlanResult, words: str) -> None:
        """Keep the result."""
        super().__init__(words)
        self.result = result


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A training before its next job."""

    prepared: Prepared
    plan: dict[str, Any]
    """One plan, as `plan --json` prints it."""
    train_id: str
    """It is part of the names of its jobs."""
    machine: Profile | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know of the choice."""


def begin(
    request: TrainRequest,
    *,
    folder: Path,
    problem: Problem,
    machine: Profile | None,
    layout: Mapping[str, Any] | None = None,
) -> Start:
    """Return the training of a folder, or a new one, of the given layout or of the best that its
    software runs."""
    there = read_folder(folder)
    if there is not None:
        there.check(request)
        return _of_plan(request, folder, problem, machine, there.plan)
    if layout is not None:
        return _of_plan(request, folder, problem, machine, _priced(ask(layout, problem)))
    result = search_problem(problem)
    if not result.plans:
        raise NothingFits(result, "no layout fits")
    refused: list[str] = []
    for plan in result.plans[:_TRIED]:
        record = {**result.to_dict(), "plans": [plan.to_dict()]}
        try:
            start = _of_plan(request, folder, problem, machine, record)
        except (CannotExpress, LayoutError) as error:
            refused.append(f"plan #{plan.rank} ({plan.layout.words()}) was passed over: {error}")
            continue
        return replace(start, notes=tuple(refused))
    raise NothingFits(
        result, f"{request.software} runs none of the best {len(refused)}; the first: {refused[0]}"
    )


def _of_plan(
    request: TrainRequest,
    folder: Path,
    problem: Problem,
    machine: Profile | None,
    plan: dict[str, Any],
) -> Start:
    record = plan["plans"][0]
    layout = ask(of_plain(dict, record["layout"]), problem).layout
    there = read_folder(folder)
    return Start(
        prepared=prepare(request, folder=folder, problem=problem, layout=layout, record=record),
        plan=plan,
        train_id=train_id_of(folder, request) if there is None else there.train_id,
        machine=machine,
    )


def _priced(asked: Asked) -> dict[str, Any]:
    """Return the plan of a layout that nobody searched for."""
    [quote] = requote(quotes([asked.layout], setting_of(asked.problem)), asked.problem)
    record = {"rank": 1, **quote_record(quote, setting_of(asked.problem))}
    return {
        "request": asked.problem.request.to_dict(),
        "plans": [record],
        "rejected": {},
        "search": {"layouts": 1, "exhaustive": False},
    }


_TICK_S = 0.5
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """How a training is."""

    folder: Path
    launcher: str
    software: str
    model: str
    total_steps: int | None
    """None before its first job."""
    done_steps: int | None
    """By its logs; None where they say nothing."""
    saved_steps: int | None
    """Of the newest whole checkpoint; None where the folder is not seen from here."""
    first_loss: float | None
    last_loss: float | None
    tokens_per_s: float | None
    """Of all chips, the last report."""
    predicted_tokens_per_s: float
    tokens_per_step: int
    jobs: tuple[Watched, ...]
    decision: Decision | None = None
    """What follows, where somebody decided."""
    silent: str | None = None
    """Why the launcher could not be asked."""

    @property
    def eta_s(self) -> float | None:
        """Seconds of the rest at the last rate; None where nothing is known, or runs."""
        running = any(job.status.state == "running" for job in self.jobs)
        if self.done_steps is None or self.total_steps is None:
            return None
        if not running or not self.tokens_per_s:
            return None
        return (self.total_steps - self.done_steps) * self.tokens_per_step / self.tokens_per_s

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `train status --json` prints."""
        values = {name: getattr(self, name) for name in _PRINTED}
        jobs = [
            {**asdict(job.note), "handle": job.handle, "status": asdict(job.status)}
            for job in self.jobs
        ]
        decision = None if self.decision is None else asdict(self.decision)
        return {"training": str(self.folder), **values, "jobs": jobs, "decision": decision}


_PRINTED = (
    *("launcher", "software", "model", "total_steps", "done_steps", "saved_steps"),
    *("first_loss", "last_loss", "tokens_per_s", "predicted_tokens_per_s", "eta_s", "silent"),
)


def start_training(
    prepared: Prepared,
    *,
    plan: dict[str, Any],
    machine: Profile | None,
    follow: bool,
    say: Callable[[str], None],
) -> TrainState:
    """Send the next job of a training, or find the one that runs; with `follow`, stay until it is
    done or can't go on.

    StudyError where the folder is another training's, or another process follows it; LauncherError
    where the launcher is not there.
    """
    starter = prepared.launcher()
    starter.check()
    if prepared.request.launcher == "local":
        starter.slots(prepared.job())
    training = read_folder(prepared.folder)
    if training is None:
        training = open_folder(prepared.folder, prepared.request, plan=plan, machine=machine)
    with locked(training.folder) as lock:
        training = training.with_request(prepared.request)
        launch = Launch(training=training, prepared=prepared, starter=starter, lock=lock, say=say)
        launch.recover()
        launch.last_found = max((job.number for job in training.jobs()), default=0)
        decision = launch.next()
        if decision.action == "wait":
            say(decision.why)
        elif decision.action == "done":
            say(f"{decision.why}; nothing is sent")
        else:
            # Where the rules would stop, somebody asked all the same: what was wrong may be mended.
            asked = "" if decision.action == "submit" else "asked for; "
            launch.submit(why=f"{asked}{decision.why}")
            decision = Decision(action="wait", why="sent")
        if follow and decision.action == "wait":
            decision = launch.follow()
    return state_of(training, decision=decision)


def training_in(folder: Path) -> TrainFolder:
    """Return the training of a folder; ConfigError where there is none."""
    found = read_folder(folder)
    if found is None:
        raise ConfigError(
            f"{folder}: no training here (train.yaml is missing); `meshwright train list` finds"
            " them"
        )
    return found


def state_of(training: TrainFolder, *, decision: Decision | None = None) -> TrainState:
    """Return how a training is; its launcher is asked."""
    plan, silent, jobs = training.plan, None, list[Watched]()
    try:
        jobs = past_jobs(training, launcher_of(training.request))
    except LauncherSilent as error:
        silent = str(error)
    readings = [read_progress(training.job_folder(job.number)) for job in training.jobs()]
    reports = [report for reading in readings if reading is not None for report in reading.reports]
    losses = [report.loss for report in reports if report.loss is not None]
    steps = [report.step for report in reports if report.step is not None]
    best, gbs = plan["plans"][0], plan["plans"][0]["layout"]["gbs"]
    work = {"seq_len": plan["request"]["seq_len"], "gbs": gbs}
    chips = _chips(best["layout"])
    seconds = reports[-1].seconds(**work, num_chips=chips) if reports else None
    model = plan["request"]["model"]
    return TrainState(
        folder=training.folder,
        launcher=training.request.launcher,
        software=training.request.software,
        model=model if isinstance(model, str) else str(model.get("name", "custom")),
        total_steps=notes[-1].total_steps if (notes := training.jobs()) else None,
        done_steps=max(steps, default=None),
        saved_steps=newest_checkpoint(Path(training.request.save_dir or training.checkpoints)),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        tokens_per_s=None if seconds is None else work["seq_len"] * gbs / seconds,
        predicted_tokens_per_s=best["tokens_per_s_per_gpu"] * chips,
        tokens_per_step=work["seq_len"] * gbs,
        jobs=tuple(jobs),
        decision=decision,
        silent=silent,
    )


def _chips(layout: dict[str, Any]) -> int:
    chips: int = layout["tp"] * layout["cp"] * layout["pp"] * layout["dp"]
    return chips


def cancel_training(training: TrainFolder, *, now: Callable[[], float] = time.time) -> list[int]:
    """End every job of a training that has not ended; return their numbers. It needs no lock, so
    that one who follows is no hindrance."""
    starter = launcher_of(training.request)
    ended = []
    # The last first, or the next of a chain would start.
    for watched in reversed(past_jobs(training, starter)):
        if watched.handle is not None and not watched.status.ended:
            starter.cancel(watched.handle)
            ended.append(watched.note.number)
    return ended[::-1]


def list_trainings(root: Path) -> list[TrainState]:
    """Return every training below a folder."""
    return [state_of(training) for training in find_trainings(root)]


def follow_logs(
    training: TrainFolder,
    *,
    number: int | None,
    name: str,
    follow: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield what a job prints, the last one's unless a number is given; with `follow`, until it and
    those behind it have ended."""
    jobs = training.jobs()
    known = [job.number for job in jobs]
    if not jobs:
        raise ConfigError(f"{training.folder}: no job was sent yet")
    if number is not None and number not in known:
        raise ConfigError(f"{training.folder}: no job {number}; it has {known}")
    place = known[-1] if number is None else number
    starter, log = launcher_of(training.request), _Log(training.job_folder(place) / name)
    while True:
        watched = {job.note.number: job for job in _polled(training, starter)}
        before = log.read
        yield from log.new_text()
        ended = watched[place].status.ended if place in watched else False
        if not follow or (ended and log.read == before):
            later = [job for job in watched if job > place]
            if not follow or number is not None or not later:
                return
            place = min(later)
            log = _Log(training.job_folder(place) / name)
            continue
        sleep(_TICK_S if starter.name == "local" else 20 * _TICK_S)


def _polled(training: TrainFolder, starter: Any) -> list[Watched]:
    with suppress(LauncherSilent):
        return past_jobs(training, starter)
    return []


@dataclass(slots=True)
class _Log:
    """One file as it grows."""

    path: Path
    read: int = 0
    """Bytes so far."""
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    """Keeps the first bytes of a letter whose last ones are still to be written."""

    def new_text(self) -> Iterator[str]:
        """Yield what was written since, a block at a time; nothing of a file that is not there."""
        try:
            with self.path.open("rb") as handle:
                handle.seek(self.read)
                while chunk := handle.read(_BLOCK_BYTES):
                    self.read += len(chunk)
                    yield self.decoder.decode(chunk)
        except OSError:
            return
