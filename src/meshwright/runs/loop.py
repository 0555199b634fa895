"""A study's course: settle what ended, choose what is next, start it, until there is nothing more
to gain or to spend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from meshwright.platforms.executor import Executor, JobStatus
from meshwright.platforms.job import Job
from meshwright.runs.choose import Choice, Stop, Tried, chances_of, choose
from meshwright.runs.counts import RunWork
from meshwright.runs.forecasts import Options
from meshwright.runs.limits import StudyLimits
from meshwright.runs.lock import Lock
from meshwright.runs.outcome import (
    Failure,
    FailureClass,
    outcome_of,
    read_run_logs,
    usual_report_s,
)
from meshwright.runs.record import (
    AnyRun,
    Course,
    Event,
    EventName,
    Outcome,
    again_id,
    first_id,
)
from meshwright.runs.store import RUN_LOGS, Store
from meshwright.runs.waiting import SAID_S, Suspect, no_suspicion, said_of_silence
from meshwright.values.errors import (
    LauncherError,
    LauncherSilent,
    StudyError,
)
from meshwright.values.units import HOUR_S, counted

__all__ = [
    "Choosable",
    "Judge",
    "Tuner",
    "View",
    "judge_runs",
    "suspect_runs",
    "tried_of",
]

Run_co = TypeVar("Run_co", bound=Course, covariant=True)
UNKNOWN_S = 300.0
"""How long a launcher may not know a job before the run is lost: accounting lags by minutes."""
LOOKS_S = 30.0
"""Silence of a running job from which on its logs are looked at for a hang."""
_BEFORE_IT = ("never_started", "launcher_error", "unresolved_node")
"""Failures that another start of the study may not meet again."""
LOOK_EVERY_S = 10.0
"""How often the logs of a running job are read."""
MOST_ATTEMPTS = 2
"""Times that a run is handed over when it ended for reasons that are not its own."""
_NOT_ITS_OWN = (
    *("preempted", "node_failure", "never_started", "launcher_error", "unresolved_node"),
)
"""Failures that say nothing of the layout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View(Generic[AnyRun]):
    """A study at one moment, for people."""

    records: tuple[AnyRun, ...]
    waits: Mapping[str, str]
    """Why runs that were handed over do not run yet, by id, in the launcher's words."""
    gpu_hours: float
    last_choice: str = ""
    """What was chosen last, and why."""
    left_to_gain: float | None = None
    """Of step time, by what is expected when that was chosen; None where nothing tells it."""
    stop: str = ""
    """Why nothing more is started."""
    chances: Mapping[str, float] = field(default_factory=dict)
    """Of what finished, by the id of its first run: how likely it is within the tolerance of the
    fastest of all candidates; empty before the end."""

    @property
    def best(self) -> AnyRun | None:
        """The first run of what is fastest in the mean of its runs; None before one finished."""
        finished = [record for record in self.records if record.cost_s is not None]
        told = tried_of(finished)
        times = {run_id: run.step_s for run_id, run in told.items() if run.step_s is not None}
        if not times:
            return None
        fastest = min(times, key=lambda run_id: times[run_id])
        return next(record for record in finished if first_id(record.run_id) == fastest)

    def to_dict(self, run_dict: Callable[[AnyRun], dict[str, Any]]) -> dict[str, Any]:
        """Return it in plain types, each run as `run_dict` has it."""
        return {
            "best": None if self.best is None else run_dict(self.best),
            "runs": [run_dict(record) for record in self.records],
            "stop": self.stop,
            "chances": dict(self.chances),
            "gpu_hours": self.gpu_hours,
        }


def tried_of(records: Iterable[AnyRun]) -> dict[str, Tried]:
    """Return what runs say of what they are of, by the id of the first run of the same."""
    found: dict[str, Tried] = {}
    for record in records:
        run = Tried(
            step_s=record.cost_s,
            noise=record.noise,
            ran_out=record.ran_out,
            pending=record.outcome is None,
        )
        name = first_id(record.run_id)
        found[name] = found[name].with_another(run) if name in found else run
    return found


Judge = Callable[[JobStatus, Path, float | None], Outcome | None]
"""What became of a run: by what the launcher says, its folder, and for how many seconds it was
silent. None: it goes on."""


class Choosable(Protocol[Run_co]):
    """What a study may run: a layout, a deployment."""

    @property
    def run_id(self) -> str:
        """Its name."""

    def planned(self, *, number: int, because: str) -> Run_co:
        """Return the record of its run."""


@dataclass(kw_only=True, slots=True)
class Tuner(Generic[AnyRun]):
    """Everything that a study's course touches; `run` is the course."""

    store: Store[AnyRun]
    lock: Lock
    candidates: Sequence[Choosable[AnyRun]]
    options: Options
    limits: StudyLimits
    executor: Executor
    num_chips: int
    """That a run holds where it does not say so itself."""
    job: Callable[[AnyRun], Job]
    judge: Judge
    now: Callable[[], float]
    sleep: Callable[[float], None]
    show: Callable[[View[AnyRun]], None]
    usd_per_chip_hour: float | None = None
    """None where nobody knows it."""
    suspect: Suspect = no_suspicion
    """What a running job may wait for."""
    repeats: bool = False
    """Whether noise between the leaders is met by running one of them again."""
    poll_s: float = 1.0
    records: dict[str, AnyRun] = field(default_factory=dict)
    _waits: dict[str, str] = field(default_factory=dict)
    _since: dict[tuple[str, Literal["unknown", "queued"]], float] = field(default_factory=dict)
    _looked: dict[str, float] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)
    _last_choice: str = ""
    _left_to_gain: float | None = None

    def run(self) -> View[AnyRun]:
        """Go on until nothing is left to start and nothing runs; return the study's state then."""
        self.read_again()
        self._give_another_go()
        while True:
            self._find_submitted()
            self._settle()
            stop = self._start()
            self.show(self.view(stop.because if stop else ""))
            if stop is not None and not self._open():
                return replace(self.view(stop.because), chances=self._chances())
            self.sleep(self.poll_s)

    def read_again(self) -> None:
        """Take the runs from the disk, which knows more than a process that was interrupted."""
        self.records = {record.run_id: record for record in self.store.records()}
        self._find_submitted()

    def view(self, stop: str = "") -> View[AnyRun]:
        """Return how the study stands."""
        ordered = tuple(sorted(self.records.values(), key=lambda record: record.number))
        return View(
            records=ordered,
            waits=dict(self._waits),
            gpu_hours=self._gpu_hours(),
            last_choice=self._last_choice,
            left_to_gain=self._left_to_gain,
            stop=stop,
        )

    def cancel_all(self) -> None:
        """End every run that was handed over; they are planned again when the study goes on."""
        for record in self._open():
            if record.handle is not None:
                self.executor.cancel(record.handle)
                self._add(record, "lost", note="cancelled by the user")

    def _open(self) -> list[AnyRun]:
        runs = self.records.values()
        return [run for run in runs if run.state == "submitted" or run.submitting]

    def _add(self, record: AnyRun, event: EventName, *, note: str = "", **told: object) -> AnyRun:
        line = Event(at_s=self.now(), event=event, note=note, **told)  # type: ignore[arg-type]  # fields of Event by name
        self.records[record.run_id] = self.store.add(record, line)
        return self.records[record.run_id]

    # What was there when the study was opened

    def _give_another_go(self) -> None:
        """Plan again what a start before this one could not get to run."""
        for record in list(self.records.values()):
            failure = record.failure
            if failure is not None and failure.failure_class in _BEFORE_IT:
                self._add(record, "lost", note=f"another go after: {failure.message}")

    def _find_submitted(self) -> None:
        """Ask the launcher for runs that were on their way to it when the tuner last wrote."""
        for record in [record for record in self.records.values() if record.submitting]:
            handle = self.executor.find(
                self.store.label(record.run_id), directory=self.store.run_folder(record.run_id)
            )
            if handle is None:
                self._add(record, "lost", note="never reached the launcher")
            else:
                self._add(record, "submitted", handle=handle, note="found again")

    # What ended

    def _settle(self) -> None:
        running = {record.handle: record for record in self._open() if record.handle is not None}
        if not running:
            return
        try:
            statuses = self.executor.poll(list(running))
        except LauncherSilent as error:
            self._waits |= {record.run_id: str(error) for record in running.values()}
            return
        for handle, record in running.items():
            self._waits.pop(record.run_id, None)
            self._settle_one(record, statuses.get(handle, JobStatus(state="unknown")))

    def _settle_one(self, record: AnyRun, status: JobStatus) -> None:
        if status.ended:
            self._end(
                record, status, self.judge(status, self.store.run_folder(record.run_id), None)
            )
        elif status.state == "running":
            self._watch(record, status)
        else:
            self._wait(record, status)

    def _watch(self, record: AnyRun, status: JobStatus) -> None:
        """End a run that hangs, or that fails without an end; say what one may wait for."""
        silent_s, folder = self._silent_s(record, status), self.store.run_folder(record.run_id)
        looked_s = self._looked.get(record.run_id, -math.inf)
        if silent_s < LOOKS_S and self.now() - looked_s < LOOK_EVERY_S:
            self._say(record, self._said.get(record.run_id, ""))
            return
        self._looked[record.run_id] = self.now()
        self._said[record.run_id] = said = self.suspect(folder, silent_s)
        self._say(record, said)
        outcome = self.judge(status, folder, silent_s)
        if outcome is not None:
            assert record.handle is not None
            self.executor.cancel(record.handle)
            self._end(record, status, outcome)

    def _say(self, record: AnyRun, words: str) -> None:
        if words:
            self._waits[record.run_id] = words

    def _silent_s(self, record: AnyRun, status: JobStatus) -> float:
        """Seconds since the run last wrote; its clock is the file server's, so one that is ahead
        counts as just now."""
        folder = self.store.run_folder(record.run_id)
        logs = (folder / name for name in RUN_LOGS)
        written = [path.stat().st_mtime for path in logs if path.exists()]
        started_s = status.started_s or record.submitted_s or self.now()
        return max(0.0, self.now() - max([started_s, *written]))

    def _wait(self, record: AnyRun, status: JobStatus) -> None:
        """A run that waits in a queue, or that the launcher does not know."""
        state: Literal["unknown", "queued"] = "unknown" if status.state == "unknown" else "queued"
        since = self._since.setdefault((record.run_id, state), self.now())
        waited_s = self.now() - since
        self._waits[record.run_id] = status.reason or state
        if state == "unknown" and waited_s > UNKNOWN_S:
            words = f"the launcher did not know it for {waited_s / 60:.0f} minutes"
            self._end(record, status, _told("node_failure", words, status))
        elif state == "queued" and waited_s > self.limits.queue_minutes * 60.0:
            assert record.handle is not None
            self.executor.cancel(record.handle)
            words = f"waited {waited_s / 60:.0f} minutes in the queue and was taken out of it"
            self._end(record, status, _told("never_started", words, status))

    def _end(self, record: AnyRun, status: JobStatus, outcome: Outcome | None) -> None:
        """Write what became of a run; one that ended for reasons not its own has another go."""
        self._waits.pop(record.run_id, None)
        outcome = outcome or Failure(
            failure_class="unknown", message=f"it is {status.state}, and its logs say nothing"
        )
        again = (
            isinstance(outcome, Failure)
            and outcome.failure_class in _NOT_ITS_OWN
            and record.attempts < MOST_ATTEMPTS
        )
        if isinstance(outcome, Failure) and again and outcome.failure_class != "never_started":
            self._add(record, "lost", note=f"{outcome.failure_class}: {outcome.message}")
        else:
            name: EventName = "failed" if isinstance(outcome, Failure) else "finished"
            self._add(
                record, name, outcome=outcome, started_s=status.started_s, ended_s=status.ended_s
            )

    # What is next

    def _start(self) -> Stop | None:
        """Start as many runs as may run at a time; say why where no further one is chosen."""
        while len(self._open()) < self.limits.parallel:
            waiting = (run for run in self.records.values() if run.state == "planned")
            planned = next((run for run in waiting if not run.submitting), None)
            stop = self._spent(is_new=planned is None)
            if stop is not None:
                return stop
            if planned is None:
                found = self._choose()
                if isinstance(found, Stop):
                    return found
                planned = found
            self._submit(planned)
        return None

    def _spent(self, *, is_new: bool) -> Stop | None:
        """Why no further run may start; what runs is reckoned with its whole limit of time."""
        limits = self.limits
        if is_new:
            stop = self._counted_out()
            if stop is not None:
                return stop
        for record in self.records.values():
            if record.failure and record.failure.failure_class in (
                "never_started",
                "unresolved_node",
            ):
                return Stop(because=f"{record.run_id} never started: {record.failure.message}")
        most = self._most_gpu_hours()
        each = self.num_chips * limits.minutes_per_run / 60.0
        if self._gpu_hours() + each * (len(self._open()) + 1) > most:
            words = f"another run of up to {each:.3g} GPU-hours could pass --budget {limits.budget}"
            return Stop(because=words)
        return None

    def _counted_out(self) -> Stop | None:
        """Why no new run may be planned: as many as are allowed have been."""
        limits, budget = self.limits, self.limits.budget
        runs = len(self.records)
        told = f"{counted(runs, 'run')} of {counted(len(self.candidates), 'candidate')}, as many as"
        if budget is not None and budget.unit == "runs" and runs >= budget.amount:
            return Stop(because=f"{told} --budget {budget} allows")
        ends = not limits.run_all and (budget is None or budget.unit != "runs")
        if ends and runs >= limits.max_runs:
            return Stop(because=f"{told} --max-runs allows")
        return None

    def _most_gpu_hours(self) -> float:
        """That the budget allows."""
        budget = self.limits.budget
        return math.inf if budget is None else budget.gpu_hours(self.usd_per_chip_hour)

    def _choose(self) -> AnyRun | Stop:
        limits = self.limits
        found = choose(
            self.options,
            self._tried(),
            strategy=limits.strategy,
            tolerance=-1.0 if limits.run_all else limits.tolerance,
            confidence=limits.confidence,
            seed=int(self.store.study.study_id[:8], 16),
            repeats=self.repeats,
        )
        if isinstance(found, Stop):
            return found
        self._left_to_gain = found.expected_loss if math.isfinite(found.expected_loss) else None
        return self._plan(found)

    def _tried(self) -> dict[int, Tried]:
        told = tried_of(self.records.values())
        return {
            index: told[candidate.run_id]
            for index, candidate in enumerate(self.candidates)
            if candidate.run_id in told
        }

    def _chances(self) -> dict[str, float]:
        """Of what finished, as the last view has it; nothing where no belief is asked."""
        if self.limits.strategy != "predicted":
            return {}
        tried = self._tried()
        chances = chances_of(self.options, tried, tolerance=self.limits.tolerance)
        return {
            self.candidates[index].run_id: float(chances[index])
            for index, run in tried.items()
            if run.step_s is not None
        }

    def _plan(self, choice: Choice) -> AnyRun:
        self.lock.require()
        candidate = self.candidates[choice.index]
        number = 1 + max((record.number for record in self.records.values()), default=0)
        record = candidate.planned(number=number, because=choice.because)
        before = sum(first_id(run_id) == candidate.run_id for run_id in self.records)
        if before:
            record = replace(record, run_id=again_id(candidate.run_id, before + 1))
        self._last_choice = f"{candidate.run_id}: {choice.because}"
        self.records[record.run_id] = self.store.plan(
            record, Event(at_s=self.now(), event="planned")
        )
        return self.records[record.run_id]

    def _submit(self, record: AnyRun) -> None:
        """Hand a run over. What was intended is written first, so that a tuner that dies here asks
        the launcher before doing it again."""
        self.lock.require()
        job, folder = self.job(record), self.store.run_folder(record.run_id)
        record = self._add(record, "submitting")
        try:
            handle = self.executor.submit(
                job, directory=folder, label=self.store.label(record.run_id)
            )
        except LauncherSilent:
            return
        except LauncherError as error:
            self._add(record, "lost", note=str(error))
            raise StudyError(f"{record.run_id} could not be started: {error}") from None
        self._add(record, "submitted", handle=handle)

    def _gpu_hours(self) -> float:
        runs = self.records.values()
        return sum(run.ran_s * (run.num_chips or self.num_chips) for run in runs) / HOUR_S


def _told(failure_class: FailureClass, message: str, status: JobStatus) -> Failure:
    return Failure(failure_class=failure_class, message=message, evidence=status.reason or None)


def suspect_runs(work: RunWork) -> Suspect:
    """Return what says why a running job of this work may be silent."""

    def suspect(folder: Path, silent_s: float) -> str:
        if silent_s < SAID_S:
            return ""
        reading = read_run_logs([folder / name for name in RUN_LOGS]).reading
        step = None if reading is None else reading.last_step
        return said_of_silence(silent_s, usual_report_s(reading, work), step=step)

    return suspect


def judge_runs(work: RunWork) -> Judge:
    """Return what reads the folder of a run of this work; None is for a run that goes on."""

    def judge(status: JobStatus, folder: Path, silent_s: float | None) -> Outcome | None:
        logs = read_run_logs([folder / name for name in RUN_LOGS], configs=[folder / "run.json"])
        return outcome_of(status, logs=logs, work=work, silent_s=silent_s)

    return judge
