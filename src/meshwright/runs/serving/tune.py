"""A study of serving from its request to its results: what `meshwright serving tune` calls."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from meshwright.platforms.executor import Executor
from meshwright.platforms.given import cluster_from_flag, find_local_cluster
from meshwright.platforms.job import Job, JobOptions, JobText
from meshwright.platforms.registry import executor, find_runner, job_text
from meshwright.runs.choose import Choice, Options, choose
from meshwright.runs.loads.figures import Limits
from meshwright.runs.loads.load import Load
from meshwright.runs.lock import locked
from meshwright.runs.loop import StudyLimits, Tuner, View
from meshwright.runs.processors import probed_processors
from meshwright.runs.serving.candidates import (
    Pins,
    ServingCandidate,
    ServingCandidates,
    named_candidates,
    serving_candidates,
    serving_options,
)
from meshwright.runs.serving.record import (
    Deployment,
    ServedRecord,
    failed_csv,
    results_csv,
    served_record_of,
)
from meshwright.runs.serving.trial import OWN_ENGINE, ServingTrial, job_of_deployment, judge_serving
from meshwright.runs.store import Store, study_folder, write_whole
from meshwright.runs.tune import (
    MACHINE_FILE,
    interrupted_study,
    kept_machine,
    with_room,
    writing_too,
)
from meshwright.search.link_rates import (
    local_pool,
)
from meshwright.serving.engine import Worker, find_engine
from meshwright.serving.request import Objective, ServingRequest
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Cluster
from meshwright.values.hardware.parse import LOCAL, parse_count
from meshwright.values.hardware.profile import Profile, profile_to_bytes
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import write_yaml

__all__ = [
    "Place",
    "PreparedServing",
    "ServingStudy",
    "ServingTuning",
    "default_serving_folder",
    "first_serving_job",
    "prepare_serving",
    "prepare_serving_study",
    "serving_place",
    "tune",
    "tune_serving",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingTuning:
    """What is asked of a study of serving beyond its request and its trial."""

    folder: Path
    limits: StudyLimits = field(default_factory=StudyLimits)
    launcher: str = "local"
    job: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        """Refuse a launcher that nothing can be started on; keep the name that runs have for it."""
        object.__setattr__(self, "launcher", find_runner(self.launcher).launcher)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedServing:
    """A study of serving before its first run."""

    request: ServingRequest
    asked: Mapping[str, Any]
    """The request in plain types, for study.yaml."""
    trial: ServingTrial
    candidates: ServingCandidates
    options: Options
    machine: Profile | None = None
    """What this machine's cores were probed to do, where engines run on them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingStudy:
    """How a study of serving ended."""

    folder: Path
    view: View[ServedRecord]

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `serving tune --json` prints."""
        best = self.view.best
        return {
            "study": str(self.folder),
            "best": None if best is None else _run_dict(best),
            "runs": [_run_dict(record) for record in self.view.records],
            "stop": self.view.stop,
            "gpu_hours": self.view.gpu_hours,
        }


def _run_dict(record: ServedRecord) -> dict[str, Any]:
    best = record.best_point
    return {
        **record.to_dict(),
        "state": record.state,
        "served": None if record.served is None else record.served.to_dict(),
        "failure": None if record.failure is None else asdict(record.failure),
        "best_load": None if best is None else best.load,
        "ran_s": record.ran_s,
    }


def default_serving_folder(model: ModelSpec, engine: str, cluster: str) -> Path:
    """Name the study by its model, engine and cluster, so that the same command finds it again."""
    words = f"serving-{model.name}-{engine}-{Path(cluster).name}"
    return Path(re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-").lower())


def prepare_serving(
    request: ServingRequest,
    trial: ServingTrial,
    *,
    asked: Mapping[str, Any],
    pins: Pins,
    workers: Sequence[Worker] | None = None,
    machine: Profile | None = None,
) -> PreparedServing:
    """Predict what may be run and form the beliefs that choices are made by; ConfigError where
    nothing can be run.

    `workers` are those that may be run, whatever the search would take; None: the search's, with
    the pins' sizes.
    """
    if len(request.cluster.pools) > 1:
        raise ConfigError(
            "serving tune measures one kind of chip at a time: name one, such as h100:8"
        )
    found = (
        serving_candidates(request, trial, pins=pins)
        if workers is None
        else named_candidates(request, trial, workers=workers)
    )
    on_cores = request.cluster.pools[0].node.chip.generation == "cpu"
    options = serving_options(found.members, on_cores=on_cores)
    return PreparedServing(
        request=request,
        asked=asked,
        trial=trial,
        candidates=found,
        options=options,
        machine=machine,
    )


def first_serving_job(
    prepared: PreparedServing, tuning: ServingTuning
) -> tuple[ServingCandidate, str, JobText, Job]:
    """Return what would be run first, why, and what would be sent."""
    found = choose(
        prepared.options, {}, strategy=tuning.limits.strategy, tolerance=tuning.limits.tolerance
    )
    assert isinstance(found, Choice)
    candidate = prepared.candidates.members[found.index]
    job = _job(prepared, tuning, candidate.deployment)
    return candidate, found.because, job_text(job, launcher=tuning.launcher), job


def _job(prepared: PreparedServing, tuning: ServingTuning, deployment: Deployment) -> Job:
    seconds = round(tuning.limits.minutes_per_run * 60)
    return job_of_deployment(
        prepared.trial, prepared.request, deployment, options=tuning.job, seconds=seconds
    )


def tune_serving(
    prepared: PreparedServing,
    tuning: ServingTuning,
    *,
    starter: Executor | None = None,
    show: Callable[[View[ServedRecord]], None] = lambda view: None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> ServingStudy:
    """Run a study of serving, or go on with it; Interrupted after Ctrl-C, StudyError where the
    folder or the launcher is in the way."""
    starter = starter or executor(tuning.launcher)
    starter.check()
    store = _store(prepared, tuning)
    members = prepared.candidates.members
    chips = {member.run_id: member.deployment.worker.chips for member in members}
    largest = max(members, key=lambda member: member.deployment.worker.chips)
    with locked(store.folder) as lock:
        tuner: Tuner[ServedRecord] = Tuner(
            store=store,
            lock=lock,
            candidates=members,
            options=prepared.options,
            limits=with_room(tuning.limits, starter, _job(prepared, tuning, largest.deployment)),
            executor=starter,
            num_chips=largest.deployment.worker.chips,
            job=lambda record: _job(prepared, tuning, record.deployment),
            judge=judge_serving(lambda run_id: chips[run_id]),
            now=now,
            sleep=sleep,
            show=writing_too(lambda view: _write(store, view, prepared, tuning), show),
        )
        try:
            view = tuner.run()
        except KeyboardInterrupt:
            raise interrupted_study(tuner, sleep) from None
        finally:
            _write(store, tuner.view(), prepared, tuning)
    return ServingStudy(folder=store.folder, view=view)


def _store(prepared: PreparedServing, tuning: ServingTuning) -> Store[ServedRecord]:
    trial = {**prepared.trial.to_dict(), "launcher": tuning.launcher}
    found = study_folder(tuning.folder, request=dict(prepared.asked), trial=trial)
    if prepared.machine is not None:
        write_whole(
            found.folder / MACHINE_FILE, profile_to_bytes(prepared.machine, form="json").decode()
        )
    return Store(folder=found.folder, study=found.study, read=served_record_of)


def _write(
    store: Store[ServedRecord],
    view: View[ServedRecord],
    prepared: PreparedServing,
    tuning: ServingTuning,
) -> None:
    """Write what follows from the runs; each file appears whole."""
    write_whole(store.folder / "results.csv", results_csv(view.records))
    write_whole(store.folder / "failed.csv", failed_csv(view.records))
    best = view.best
    if best is None or best.best_point is None or best.best_point.figures is None:
        return
    point, figures = best.best_point, best.best_point.figures
    content = {
        "run_id": best.run_id,
        "engine": prepared.request.engine.name,
        "deployment": best.deployment.to_dict(),
        "load": point.load,
        "measured": figures.to_dict(),
        "request": dict(prepared.asked),
    }
    write_whole(store.folder / "best.yaml", write_yaml(content))
    folder = store.folder / "best"
    folder.mkdir(exist_ok=True)
    for file in _job(prepared, replace(tuning, job=JobOptions()), best.deployment).files:
        write_whole(folder / file.name, file.text)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where engines run."""

    word: str
    """As it was asked for: h100:8, local."""
    cluster: Cluster
    machine: Profile | None = None
    """Of processors: what they were probed to do."""

    @property
    def on_cores(self) -> bool:
        """Whether engines run on processors."""
        return self.cluster.pools[0].node.chip.generation == "cpu"


def serving_place(cluster: str, *, folder: Path, gpus_per_node: int | None = None) -> Place:
    """Return the chips of a cluster's name; `local` without a GPU is the processor's cores, as they
    were probed when the study began."""
    word, colon, count = cluster.strip().lower().partition(":")
    if word != LOCAL or (not colon and find_local_cluster() is not None):
        return Place(word=cluster, cluster=cluster_from_flag(cluster, gpus_per_node=gpus_per_node))
    cores = parse_count(count, kind=LOCAL) if colon else None
    machine = kept_machine(folder) or probed_processors(cores=cores)
    return Place(word=cluster, cluster=Cluster(pools=(local_pool(machine),)), machine=machine)


def prepare_serving_study(
    model: ModelSpec,
    place: Place,
    *,
    engine: str,
    loads: Sequence[Load],
    limits: Limits | None = None,
    objective: Objective = "throughput",
    weights: Sequence[str] | None = None,
    cache: Sequence[str] | None = None,
    pins: Pins | None = None,
    workers: Sequence[Worker] | None = None,
    model_path: str | None = None,
    port: int | None = None,
    ready_s: float = 900.0,
    patience_s: float = 600.0,
    extra: tuple[str, ...] = (),
) -> PreparedServing:
    """Return a study before its first run; ConfigError where nothing can be run, or something asked
    for has no effect.

    The lengths that deployments are predicted for are the loads' means. `weights` are 16 bits, on
    processors fp32, unless others are named, and the cache is of the same type. `workers` are
    exactly those that may be run; None: what the search finds, with the pins' sizes.
    """
    asks = [ask for load in loads for ask in load.asks]
    kept = limits or Limits()
    types = tuple(weights or (("fp32",) if place.on_cores else ("bf16",)))
    request = ServingRequest(
        model=model,
        cluster=place.cluster,
        engine=find_engine(engine),
        input_len=round(sum(ask.input_len for ask in asks) / len(asks)),
        output_len=round(sum(ask.output_len for ask in asks) / len(asks)),
        ttft_s=kept.ttft_s,
        tpot_s=kept.tpot_s,
        e2e_s=kept.e2e_s,
        objective=objective,
        modes=("aggregated",),
        weights=cast("Any", types),
        cache=(
            cast("Any", tuple(cache))
            if cache
            else cast("Any", types)
            if all(word in _HALVES for word in types)
            else None
        ),
    )
    trial = ServingTrial(
        loads=tuple(loads),
        limits=kept,
        objective=objective,
        model_path=model_path,
        port=port,
        ready_s=ready_s,
        patience_s=patience_s,
        extra=extra,
    )
    asked = {
        "model": asdict(model),
        "cluster": place.word,
        "engine": request.engine.name,
        "weights": list(types),
        "cache": list(cache or ()),
        "input_len": request.input_len,
        "output_len": request.output_len,
    }
    return prepare_serving(
        request, trial, asked=asked, pins=pins or {}, workers=workers, machine=place.machine
    )


_HALVES = ("fp32", "bf16", "fp16")


def tune(
    model: ModelSpec | str,
    cluster: str,
    *,
    loads: Sequence[Load],
    folder: Path | str,
    engine: str = OWN_ENGINE,
    launcher: str = "local",
    study: StudyLimits | None = None,
    **asked: Any,
) -> ServingStudy:
    """Run a study of serving, or go on with it, as `meshwright serving tune` does; `asked` is that
    of `prepare_serving_study`."""
    spec = named_model(model) if isinstance(model, str) else model
    place = serving_place(cluster, folder=Path(folder))
    prepared = prepare_serving_study(spec, place, engine=engine, loads=loads, **asked)
    return tune_serving(
        prepared,
        ServingTuning(folder=Path(folder), limits=study or StudyLimits(), launcher=launcher),
    )
