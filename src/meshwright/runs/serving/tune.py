"""A study of serving from its request to its results: what `meshwright serving tune` calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from meshwright.platforms.executor import Executor
from meshwright.platforms.given import cluster_from_flag, find_local_cluster
from meshwright.platforms.job import Job, JobOptions, JobText
from meshwright.platforms.registry import executor, job_text
from meshwright.runs.forecasts import Options
from meshwright.runs.limits import StudyLimits
from meshwright.runs.loads.figures import Limits
from meshwright.runs.loads.load import Load
from meshwright.runs.loop import View
from meshwright.runs.processors import probed_processors
from meshwright.runs.results import write_best, write_tables
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
from meshwright.runs.store import Store
from meshwright.runs.tune import Conduct, StudyOptions, first_choice, folder_of, kept_machine
from meshwright.search.link_rates import (
    local_pool,
)
from meshwright.serving.engine import Worker, find_engine
from meshwright.serving.request import Objective, ServingRequest
from meshwright.serving.settings import every_setting
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Cluster
from meshwright.values.hardware.parse import LOCAL, parse_count
from meshwright.values.hardware.profile import Profile
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "Place",
    "PreparedServing",
    "ServingStudy",
    "default_serving_folder",
    "first_serving_job",
    "prepare_serving_study",
    "serving_place",
    "tune",
    "tune_serving",
]


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
        return {"study": str(self.folder), **self.view.to_dict(_run_dict)}


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
    return folder_of(f"serving-{model.name}-{engine}", cluster)


def first_serving_job(
    prepared: PreparedServing, tuning: StudyOptions
) -> tuple[ServingCandidate, str, JobText, Job]:
    """Return what would be run first, why, and what would be sent."""
    candidate, found = first_choice(prepared.candidates.members, prepared.options, tuning)
    job = _job(prepared, tuning, candidate.deployment)
    return candidate, found.because, job_text(job, launcher=tuning.launcher), job


def _job(prepared: PreparedServing, tuning: StudyOptions, deployment: Deployment) -> Job:
    return job_of_deployment(
        prepared.trial,
        prepared.request,
        deployment,
        options=tuning.job,
        seconds=tuning.seconds_per_run,
    )


def tune_serving(
    prepared: PreparedServing,
    tuning: StudyOptions,
    *,
    starter: Executor | None = None,
    show: Callable[[View[ServedRecord]], None] = lambda view: None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> ServingStudy:
    """Run a study of serving, or go on with it; Interrupted after Ctrl-C, StudyError where the
    folder or the launcher is in the way."""
    members = prepared.candidates.members
    chips = {member.run_id: member.deployment.worker.chips for member in members}
    largest = max(members, key=lambda member: member.deployment.worker.chips)
    conduct = Conduct(
        asked=tuning,
        request=prepared.asked,
        trial=prepared.trial.to_dict(),
        machine=prepared.machine,
        members=members,
        options=prepared.options,
        num_chips=largest.deployment.worker.chips,
        largest=_job(prepared, tuning, largest.deployment),
        job=lambda record: _job(prepared, tuning, record.deployment),
        judge=judge_serving(lambda run_id: chips[run_id]),
        read=served_record_of,
        write=lambda store, view: _write(store, view, prepared, tuning),
        starter=starter or executor(tuning.launcher),
        now=now,
        sleep=sleep,
    )
    store = conduct.opened()
    return ServingStudy(folder=store.folder, view=conduct.run(store, show))


def _write(
    store: Store[ServedRecord],
    view: View[ServedRecord],
    prepared: PreparedServing,
    tuning: StudyOptions,
) -> None:
    results, failed = results_csv(view.records), failed_csv(view.records)
    write_tables(store.folder, {"results.csv": results, "failed.csv": failed})
    best = view.best
    if best is None or best.best_point is None or best.best_point.figures is None:
        return
    point, figures = best.best_point, best.best_point.figures
    content = {
        "run_id": best.run_id,
        "engine": prepared.request.engine.name,
        "deployment": asdict(best.deployment),
        "load": point.load,
        "measured": figures.to_dict(),
        "request": dict(prepared.asked),
    }
    plain = replace(tuning, job=JobOptions())
    write_best(store.folder, content, files=lambda: _job(prepared, plain, best.deployment).files)


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
    settings: Mapping[str, Sequence[int | bool]] | None = None,
    workers: Sequence[Worker] | None = None,
    **trial: Any,
) -> PreparedServing:
    """Return a study before its first run, with what may be run and the beliefs that choices are
    made by; ConfigError where nothing can be run, or something asked for has no effect.

    The lengths that deployments are predicted for are the loads' means. `weights` are 16 bits, on
    processors fp32, unless others are named, and the cache is of the same type. `workers` are
    exactly those that may be run; None: what the search finds, with the pins' sizes, under every
    combination of `settings`, values by the name of a field of Settings. `trial` are further fields
    of ServingTrial.
    """
    asks, kept = [ask for load in loads for ask in load.asks], limits or Limits()
    types = tuple(weights or (("fp32",) if place.on_cores else ("bf16",)))
    usual = types if all(word in _HALVES for word in types) else None
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
        cache=cast("Any", tuple(cache) if cache else usual),
    )
    how = ServingTrial(loads=tuple(loads), limits=kept, objective=objective, **trial)
    if len(request.cluster.pools) > 1:
        raise ConfigError(
            "serving tune measures one kind of chip at a time: name one, such as h100:8"
        )
    if workers is None:
        told_of = every_setting(settings or {})
        found = serving_candidates(request, how, pins=pins or {}, settings=told_of)
    else:
        if settings:
            raise ConfigError(f"{', '.join(settings)}: no effect beside workers that are named")
        found = named_candidates(request, how, workers=workers)
    told = {"weights": list(types), "cache": list(cache or ())}
    options = serving_options(found.members, engine=request.engine, on_cores=place.on_cores)
    return PreparedServing(
        request=request,
        asked=_asked(request, place, told),
        trial=how,
        candidates=found,
        options=options,
        machine=place.machine,
    )


def _asked(request: ServingRequest, place: Place, told: Mapping[str, Any]) -> dict[str, Any]:
    """The request in plain types."""
    names = {"cluster": place.word, "engine": request.engine.name}
    lengths = {"input_len": request.input_len, "output_len": request.output_len}
    return {"model": asdict(request.model), **names, **told, **lengths}


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
        StudyOptions(folder=Path(folder), limits=study or StudyLimits(), launcher=launcher),
    )
