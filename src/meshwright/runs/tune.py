"""A study from its request to its results: what `meshwright tune` calls."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from meshwright.platforms.executor import Executor
from meshwright.platforms.given import load_profile
from meshwright.platforms.job import Job, JobOptions, JobText
from meshwright.platforms.registry import executor, find_runner, job_text
from meshwright.runs.candidates import Candidate, Candidates, Refusal, candidates_of
from meshwright.runs.choose import Choice, choose
from meshwright.runs.counts import RunWork, least_step_s
from meshwright.runs.forecasts import Options, options_of
from meshwright.runs.limits import StudyLimits
from meshwright.runs.lock import locked
from meshwright.runs.loop import Choosable, Judge, Tuner, View, judge_runs, suspect_runs
from meshwright.runs.record import AnyRun, RunRecord, StudyFacts, record_of
from meshwright.runs.results import write_results
from meshwright.runs.store import Store, read_store, study_folder, write_whole
from meshwright.runs.trackers import Tracking, tracked
from meshwright.runs.trial import Trial, job_of_layout, refusal_of
from meshwright.runs.waiting import Suspect, no_suspicion
from meshwright.search.problem import Problem
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError, MeshwrightError
from meshwright.values.hardware.profile import Profile, profile_to_bytes
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params
from meshwright.values.text import html_table
from meshwright.values.units import HOUR_S

__all__ = [
    "Conduct",
    "Finder",
    "Interrupted",
    "Prepared",
    "StudyOptions",
    "StudyResult",
    "Tuning",
    "default_folder",
    "first_choice",
    "first_job",
    "folder_of",
    "interrupted_study",
    "kept_machine",
    "otherwise_than_told",
    "prepare",
    "run_study",
    "study_record",
    "with_room",
    "work_of_problem",
]

MACHINE_FILE = "machine.json"
"""In a study's folder: what the machine was probed to do."""
LEAST_OFF = 2
"""Runs beyond their intervals on one side, before it is the machine's or the software's fault: by
chance two of 10 % each are in one of 100 studies."""
SECOND_THOUGHT_S = 5.0
"""How long after Ctrl-C a second one still cancels what runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyOptions:
    """What is asked of any study beyond its request and its trial."""

    folder: Path
    limits: StudyLimits = field(default_factory=StudyLimits)
    launcher: str = "local"
    job: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        """Refuse a launcher that nothing can be started on; keep the name that runs have for it."""
        object.__setattr__(self, "launcher", find_runner(self.launcher).launcher)

    @property
    def seconds_per_run(self) -> int:
        """After which a run is ended."""
        return round(self.limits.minutes_per_run * 60)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning(StudyOptions):
    """What is asked of a study of training beyond its request."""

    trial: Trial = field(default_factory=Trial)
    tracking: Tracking = field(default_factory=Tracking)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A study before its first run."""

    problem: Problem
    candidates: Candidates
    options: Options
    machine: Profile | None = None
    """What this machine's cores were probed to do, where they are searched for; kept, so that a
    study goes on from the same figures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """How a study ended."""

    folder: Path
    facts: StudyFacts
    view: View

    def _repr_html_(self) -> str:
        """Show every run in a notebook, beside its prediction."""
        view, best = self.view, self.view.best
        name = f"{self.facts.model} on {self.facts.num_chips} x {self.facts.chip}"
        said = "no run finished"
        if best is not None and best.measured is not None:
            said = f"best {best.measured.step_s:.4g} s a step"
        stopped = f"; stopped: {view.stop}" if view.stop else ""
        return html_table(
            f"{name}: {said}",
            _HEADINGS,
            (_run_cells(record) for record in view.records),
            note=f"{self.folder}; {view.gpu_hours:.3g} GPU-hours{stopped}",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `tune --json` prints."""
        found = self.view.to_dict(run_dict)
        note = otherwise_than_told(self.view.records)
        return {
            "study": str(self.folder),
            "facts": asdict(self.facts),
            "notes": [] if note is None else [note],
            **found,
        }


_HEADINGS = (
    *("run", "layout", "predicted, s", "measured, s"),
    *("measured / predicted", "state", "chosen because"),
)


def _run_cells(record: RunRecord) -> tuple[object, ...]:
    """One row of the table in a notebook."""
    took = None if record.measured is None else record.measured.step_s
    state = record.state if record.failure is None else f"failed: {record.failure.failure_class}"
    predicted = record.predicted.step_s
    off = None if took is None else took / predicted
    return record.number, record.layout.words(), predicted, took, off, state, record.chosen_because


def run_dict(record: RunRecord) -> dict[str, Any]:
    """Return a run as `tune --json` has it."""
    outcome = None if record.outcome is None else asdict(record.outcome)
    return {
        **record.to_dict(),
        "state": record.state,
        "measured" if record.measured else "failure": outcome,
        "ran_s": record.ran_s,
    }


class Interrupted(MeshwrightError):
    """Ctrl-C: what was measured is kept."""


def default_folder(fields: Mapping[str, Any]) -> Path:
    """Name the study by its model and its cluster, so that the same command finds it again."""
    model = fields["model"]
    name = model if isinstance(model, str) else str(model.get("name", "model"))
    return folder_of(f"tune-{name}", str(fields["cluster"]))


def folder_of(words: str, cluster: str) -> Path:
    """Name the folder of a study by words and a cluster, which may be a file."""
    return Path(re.sub(r"[^A-Za-z0-9.]+", "-", f"{words}-{Path(cluster).name}").strip("-").lower())


Finder = Callable[[Problem, Refusal], Candidates]
"""How candidates are found."""


def prepare(
    problem: Problem, trial: Trial, *, machine: Profile | None = None, find: Finder | None = None
) -> Prepared:
    """Search what may be run and form beliefs for the choices; ConfigError where nothing can be."""
    if problem.request.gbs is None:
        raise ConfigError("tune compares layouts of one batch: give --gbs")
    candidates = (find or candidates_of)(problem, lambda layout: refusal_of(trial, problem, layout))
    options = options_of([candidate.forecast for candidate in candidates.members])
    return Prepared(problem=problem, candidates=candidates, options=options, machine=machine)


def kept_machine(folder: Path) -> Profile | None:
    """Return what the machine was probed to do when a study began; None where it was not."""
    path = folder / MACHINE_FILE
    return load_profile(path) if path.exists() else None


def first_job(prepared: Prepared, tuning: Tuning) -> tuple[Candidate, Choice, JobText]:
    """Return what would be run first, why, and the text that would be sent."""
    candidate, choice = first_choice(prepared.candidates.members, prepared.options, tuning)
    job = _job(prepared.problem, tuning, candidate.layout)
    return candidate, choice, job_text(job, launcher=tuning.launcher)


Member = TypeVar("Member")


def first_choice(
    members: Sequence[Member], options: Options, asked: StudyOptions
) -> tuple[Member, Choice]:
    """Return what any study would run first, and why."""
    limits = asked.limits
    choice = choose(options, {}, strategy=limits.strategy, tolerance=limits.tolerance)
    assert isinstance(choice, Choice)
    return members[choice.index], choice


def work_of(prepared: Prepared, *, steps: int) -> RunWork:
    """Return the work of one step of any run of a study, which is to make so many steps."""
    work = work_of_problem(prepared.problem, steps=steps)
    # The peak of processors is what a probe found beside whatever else ran then: no limit.
    return work if prepared.machine is None else replace(work, least_step_s=0.0)


def work_of_problem(problem: Problem, *, steps: int | None = None) -> RunWork:
    """Return the work of one step of a plan's runs."""
    setting, gbs = problem.setting, problem.request.gbs or 1
    peak = setting.pool.node.chip.peak_flops_per_s(setting.work.precision)
    least_s = least_step_s(
        setting.model, setting.work, gbs=gbs, num_chips=problem.num_chips, peak_flops_per_s=peak
    )
    return RunWork(
        seq_len=setting.work.seq_len,
        gbs=gbs,
        num_chips=problem.num_chips,
        steps=steps,
        least_step_s=least_s,
    )


def _job(problem: Problem, tuning: Tuning, layout: Layout) -> Job:
    return job_of_layout(
        tuning.trial, problem, layout, options=tuning.job, seconds=tuning.seconds_per_run
    )


def run_study(
    prepared: Prepared,
    tuning: Tuning,
    *,
    starter: Executor | None = None,
    show: Callable[[View], None] = lambda view: None,
    warn: Callable[[str], None] = lambda line: None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> StudyResult:
    """Run a study, or go on with it; Interrupted after Ctrl-C, StudyError where the folder or the
    launcher is in the way.

    `warn` gets a line for each run that a tracker would not take.
    """
    problem, members = prepared.problem, prepared.candidates.members
    facts = facts_of(problem, tuning)
    work = work_of(prepared, steps=tuning.trial.steps)
    conduct = Conduct(
        asked=tuning,
        request=problem.request.to_dict(),
        trial=tuning.trial.to_dict(),
        machine=prepared.machine,
        members=members,
        options=prepared.options,
        num_chips=problem.num_chips,
        usd_per_chip_hour=facts.usd_per_chip_hour,
        repeats=True,
        largest=_job(problem, tuning, members[0].layout),
        usual=PlanRequest.usual(),
        job=lambda record: _job(problem, tuning, record.layout),
        judge=judge_runs(work),
        suspect=suspect_runs(work),
        read=record_of,
        write=lambda store, view: write_results(
            store, facts, view, problem=problem, trial=tuning.trial
        ),
        starter=starter or executor(tuning.launcher),
        now=now,
        sleep=sleep,
    )
    store = conduct.opened()
    show = tracked(
        show, tuning.tracking, store=store, facts=facts, model=problem.setting.model, warn=warn
    )
    return StudyResult(folder=store.folder, facts=facts, view=conduct.run(store, show))


@dataclass(frozen=True, kw_only=True, slots=True)
class Conduct(Generic[AnyRun]):
    """A study of anything that can be run, with what its kind brings: what may be run, as which
    job, who judges it, and what is written of it."""

    asked: StudyOptions
    request: Mapping[str, Any]
    trial: Mapping[str, Any]
    machine: Profile | None
    members: Sequence[Choosable[AnyRun]]
    options: Options
    num_chips: int
    """That a run holds where it does not say so itself."""
    usd_per_chip_hour: float | None = None
    repeats: bool = False
    """As of a Tuner."""
    largest: Job
    """It tells how many have room at a time."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """What fields of the request are that an older study does not say."""
    job: Callable[[AnyRun], Job]
    judge: Judge
    read: Callable[..., AnyRun]
    write: Callable[[Store[AnyRun], View[AnyRun]], None]
    """Everything that is derived from the runs; each file appears whole."""
    starter: Executor
    suspect: Suspect = no_suspicion
    """What a running job may wait for."""
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def opened(self) -> Store[AnyRun]:
        """Return the study's folder; StudyError where it, or the launcher, is in the way."""
        if self.asked.limits.budget is not None:
            self.asked.limits.budget.gpu_hours(self.usd_per_chip_hour)
        self.starter.check()
        trial = {**self.trial, "launcher": self.asked.launcher}
        store = study_folder(
            self.asked.folder,
            request=dict(self.request),
            trial=trial,
            read=self.read,
            usual=self.usual,
        )
        if self.machine is not None:
            text = profile_to_bytes(self.machine, form="json").decode()
            write_whole(store.folder / MACHINE_FILE, text)
        return store

    def run(self, store: Store[AnyRun], show: Callable[[View[AnyRun]], None]) -> View[AnyRun]:
        """Run the study, or go on with it; Interrupted after Ctrl-C."""
        with locked(store.folder) as lock:
            tuner = Tuner(
                store=store,
                lock=lock,
                candidates=self.members,
                options=self.options,
                limits=with_room(self.asked.limits, self.starter, self.largest),
                executor=self.starter,
                num_chips=self.num_chips,
                usd_per_chip_hour=self.usd_per_chip_hour,
                repeats=self.repeats,
                job=self.job,
                judge=self.judge,
                suspect=self.suspect,
                now=self.now,
                sleep=self.sleep,
                show=_writing_too(lambda view: self.write(store, view), show),
            )
            try:
                return tuner.run()
            except KeyboardInterrupt:
                raise interrupted_study(tuner, self.sleep) from None
            finally:
                self.write(store, tuner.view())


def _writing_too(
    write: Callable[[View[AnyRun]], None], show: Callable[[View[AnyRun]], None]
) -> Callable[[View[AnyRun]], None]:
    """Return what writes the tables again whenever a run has ended, then shows."""
    written: list[int] = []

    def shown(view: View[AnyRun]) -> None:
        ended = sum(record.outcome is not None for record in view.records)
        if written[-1:] != [ended]:
            write(view)
            written.append(ended)
        show(view)

    return shown


def with_room(limits: StudyLimits, starter: Executor, job: Job) -> StudyLimits:
    """Return the limits with no more at a time than the launcher has room for."""
    room = starter.slots(job)
    return limits if room is None else replace(limits, parallel=min(limits.parallel, room))


def interrupted_study(tuner: Tuner[AnyRun], sleep: Callable[[float], None]) -> Interrupted:
    """Return what to say after Ctrl-C; runs go on unless a second one cancels them."""
    tuner.read_again()
    going = [record.run_id for record in tuner.records.values() if record.state == "submitted"]
    if not going:
        return Interrupted("stopped; the same command goes on from here")
    tuner.show(
        tuner.view(
            f"Ctrl-C: {', '.join(going)} will go on; press it again within {SECOND_THOUGHT_S:.0f} s"
            " to cancel"
        )
    )
    try:
        sleep(SECOND_THOUGHT_S)
    except KeyboardInterrupt:
        tuner.cancel_all()
        return Interrupted(f"cancelled {', '.join(going)}; the same command runs them again")
    return Interrupted(f"{', '.join(going)} go on without us; the same command picks them up")


def facts_of(problem: Problem, tuning: Tuning) -> StudyFacts:
    """Return what all runs of a study share."""
    setting = problem.setting
    return StudyFacts(
        model=setting.model.name,
        params=model_params(setting.model).total,
        chip=setting.pool.node.chip.name,
        num_chips=problem.num_chips,
        chips_per_node=setting.pool.node.chips_per_node,
        seq_len=setting.work.seq_len,
        precision=setting.work.precision,
        stack=setting.stack.name,
        software=tuning.trial.software,
        launcher=tuning.launcher,
        peak_flops_per_s=setting.pool.node.chip.peak_flops_per_s(setting.work.precision),
        usd_per_chip_hour=(
            None if problem.usd_per_chip_s is None else problem.usd_per_chip_s * 3600.0
        ),
    )


def otherwise_than_told(records: Sequence[RunRecord]) -> str | None:
    """Say that the machine or the software is not what was told: where at least two runs finished
    and all of them lie beyond their 80 % intervals on one side."""
    done = [(record.measured.step_s, record.predicted) for record in records if record.measured]
    above = [step_s > predicted.step_interval_s[1] for step_s, predicted in done]
    below = [step_s < predicted.step_interval_s[0] for step_s, predicted in done]
    if len(done) < LEAST_OFF or not (all(above) or all(below)):
        return None
    ratios = sorted(step_s / predicted.step_s for step_s, predicted in done)
    middle = statistics.median(ratios)
    words = f"slower x{middle:.2g}" if all(above) else f"faster x{1.0 / middle:.2g}"
    return (
        f"every run is {words} than predicted (x{ratios[0]:.2g} to x{ratios[-1]:.2g} of the"
        " prediction): the machine or the software is not what was told; `meshwright profile`"
        " measures the one, --stack names the other"
    )


def study_record(folder: Path) -> dict[str, Any]:
    """Return the runs of a study with its request; ConfigError where the folder is none. Why it
    stopped is not kept in it."""
    store = read_store(folder)
    records = store.records()
    hours = sum(record.ran_s * record.layout.num_chips for record in records) / HOUR_S
    found = View(records=records, waits={}, gpu_hours=hours).to_dict(run_dict)
    del found["stop"]
    study = store.study
    return {"study": str(folder), "request": study.request, "trial": study.trial, **found}
