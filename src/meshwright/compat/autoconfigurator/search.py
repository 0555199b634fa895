"""A search as AutoConfigurator runs it: a base configuration, its candidates, and a study."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright import api
from meshwright.compat.autoconfigurator.settings import (
    JOB_NAME_PREFIX,
    TrainSettings,
    model_of_settings,
    request_fields,
    wanted_batch,
)
from meshwright.platforms.executor import Executor
from meshwright.platforms.job import JobOptions
from meshwright.platforms.registry import executor
from meshwright.runs.budget import read_budget
from meshwright.runs.candidates import Candidate, Candidates, Refusal, fitting_candidates
from meshwright.runs.limits import StudyLimits
from meshwright.runs.trackers import Tracking, read_key
from meshwright.runs.trial import OWN_TRAINER, Trial
from meshwright.runs.tune import Prepared, Tuning
from meshwright.search.plan import search_problem
from meshwright.search.problem import Problem
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import GIB

__all__ = ["NothingFits", "Platform", "Search", "platform_of", "search_of"]

_LAUNCHERS = {"bcm": "slurm", "bcp": "bcp", "k8s": "k8s", "interactive": "local"}
"""The launcher of runs behind each `cluster_type`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One cluster, as runs need to know it."""

    launcher: str
    job: JobOptions = field(default_factory=JobOptions)
    starter: Mapping[str, Any] = field(default_factory=dict)
    """Options of the launcher's executor."""
    parallel: int = 1
    notes: tuple[str, ...]
    """Words that were set and change nothing."""

    @property
    def is_local(self) -> bool:
        return self.launcher == "local"

    def executor(self) -> Executor:
        return executor(self.launcher, **self.starter)


def platform_of(config: Mapping[str, Any]) -> Platform:
    """Return the platform of a composed configuration; ConfigError for words that no job takes."""
    cluster, launcher = config["cluster"], _LAUNCHERS[str(config["cluster_type"])]
    notes = tuple(_idle(cluster))
    if launcher == "local":
        return Platform(launcher=launcher, notes=notes)
    # A job of ours has all of its nodes.
    memory = [f"--mem={cluster['mem']}"] if cluster.get("mem") not in (None, 0) else []
    more = {"slurm": memory, "bcp": ["--team", str(cluster["team"])] if cluster.get("team") else []}
    job = JobOptions(
        image=config.get("training_container"),
        mounts=_mounts(config),
        account=cluster.get("account") or cluster.get("org"),
        partition=cluster.get("partition") or cluster.get("ace"),
        instance=cluster.get("instance"),
        words=tuple(more.get(launcher, ())),
    )
    namespace = cluster.get("namespace") if launcher == "k8s" else None
    starter = {"namespace": namespace} if namespace else {}
    parallel = config["parallel_runs"]
    return Platform(launcher=launcher, job=job, starter=starter, parallel=parallel, notes=notes)


def _mounts(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the container sees: the user's mounts, and the tool's folders under their own names."""
    given = [str(mount) for mount in config["container_mounts"] or () if mount]
    keys = ("auto_configurator_path", "base_results_dir", "data_dir")
    own = [str(config[key]) for key in keys if config.get(key)]
    cluster = config["cluster"]
    if config["cluster_type"] == "bcp":
        # It has no folders of a host: results come back with the log.
        workspace = cluster.get("workspace")
        return (*([] if workspace is None else [f"workspace={workspace}:/workspace"]), *given)
    absolute = [str(Path(folder).resolve()) for folder in own]
    pairs = [mount if ":" in mount else f"{mount}:{mount}" for mount in (*given, *absolute)]
    if cluster.get("volume") is not None:
        pairs = [_claim(str(cluster["volume"])), *pairs[: len(given)]]
    return tuple(dict.fromkeys(pairs))


def _claim(volume: str) -> str:
    """A claim of Kubernetes, NAME:/path; it takes the place of the node's own folders."""
    name, colon, target = volume.partition(":")
    if not colon or not target.startswith("/"):
        raise ConfigError(
            f"cluster.volume={volume}: expected NAME:/path, a volume claim and where the container"
            " sees it"
        )
    return f"pvc={name}:{target}"


def _idle(cluster: Mapping[str, Any]) -> list[str]:
    """Say which words were set and change nothing here."""
    found = []
    if cluster.get("srun_args") not in (None, ["--no-container-mount-home"]):
        found.append(
            "cluster.srun_args has no effect: jobs are started by sbatch scripts of ours; put"
            " options for sbatch into a job file"
        )
    if cluster.get("exclusive") is False:
        found.append(
            "cluster.exclusive=False has no effect: a run holds whole nodes, else its times are not"
            " its own"
        )
    if cluster.get("gpus_per_task") is not None:
        found.append("cluster.gpus_per_task has no effect: each process has one GPU")
    if cluster.get("job_name_prefix") not in (None, JOB_NAME_PREFIX):
        found.append(
            "cluster.job_name_prefix has no effect: a job is named by its study and its run, so"
            " that it is found again"
        )
    if cluster.get("nfs_server") is not None or cluster.get("nfs_path") is not None:
        found.append(
            "cluster.nfs_server and nfs_path have no effect: give cluster.volume=NAME:/path, a"
            " volume claim over them"
        )
    return found


_SOFTWARE = ("nemo1-script", "megatron-lm")
"""What candidates are written for, in order; NeMo 1.x has no words for some models."""
_TRIES = 24
"""Batches that are tried, nearest first, where the tool's own divides on no layout."""


class NothingFits(ConfigError):
    """No layout fits these GPUs; the message says what would."""


class _NoneLeft(ConfigError):
    """Layouts fit, but none within the bounds of model parallelism; the message names them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A search with candidates."""

    prepared: Prepared
    """Its candidates fit and are asked for, the fastest predicted first."""
    trial: Trial
    gbs: int


def software_of(word: str, *, program: str | None, local: bool) -> tuple[str, ...]:
    """Return what candidates may be written for, in order; UnknownNameError for another word."""
    if word not in ("auto", *_SOFTWARE):
        raise UnknownNameError("software", word, ("auto", *_SOFTWARE))
    if local and program is None:
        if word != "auto":
            raise ConfigError(
                f"software={word}: give program= as well, where its script is on this machine"
            )
        return (OWN_TRAINER,)
    return _SOFTWARE if word == "auto" else (word,)


def prepare_search(
    settings: TrainSettings,
    model: ModelSpec,
    *,
    software: tuple[str, ...],
    program: str | None,
    gbs: int,
    given: bool,
    local: bool,
) -> Ready:
    """Prepare with the first batch that works; a given batch is never changed."""
    first: ConfigError | None = None
    for batch in (gbs,) if given else _near(gbs):
        fields = request_fields(settings, model, gbs=batch, local=local)
        for name in software:
            steps, script = settings.max_steps_per_run, None if name == OWN_TRAINER else program
            trial = Trial(software=name, steps=steps, program=script)
            try:
                return _ready(settings, trial, fields)
            except _NoneLeft:
                raise
            except ConfigError as error:
                first = first or error
        if batch == gbs:
            dividing = gbs if given else max(1, round(gbs / settings.num_gpus)) * settings.num_gpus
            _require_room(request_fields(settings, model, gbs=dividing, local=local))
    assert first is not None
    raise first


def _ready(settings: TrainSettings, trial: Trial, fields: Mapping[str, Any]) -> Ready:
    bounds = _Bounds(settings)

    def find(problem: Problem, refusal: Refusal) -> Candidates:
        def why(layout: Layout) -> str | None:
            return bounds.refusal(layout) or refusal(layout)

        return fitting_candidates(problem, why, count=settings.limit_search_runs)

    try:
        prepared = api.prepare_study(
            fields, Tuning(folder=Path(settings.logs), trial=trial), find=find
        )
    except ConfigError:
        if bounds.outside:
            raise _NoneLeft(
                f"no candidate is left with {bounds.words}: layouts that fit have {bounds.sizes}"
            ) from None
        raise
    return Ready(prepared=prepared, trial=trial, gbs=fields["gbs"])


class _Bounds:
    """Bounds of model parallelism, and the sizes outside them that were met."""

    def __init__(self, settings: TrainSettings) -> None:
        low, high = settings.min_model_parallel_size, settings.max_model_parallel_size
        self.low, self.high = 1 if low == "auto" else low, math.inf if high == "auto" else high
        self.words = f"min_model_parallel_size={low} and max_model_parallel_size={high}"
        self.outside: set[int] = set()

    def refusal(self, layout: Layout) -> str | None:
        size = layout.tp * layout.pp * layout.cp * layout.ep
        if self.low <= size <= self.high:
            return None
        self.outside.add(size)
        return self.words

    @property
    def sizes(self) -> str:
        return ", ".join(map(str, sorted(self.outside)))


def _require_room(fields: Mapping[str, Any]) -> None:
    """NothingFits where the model is too large for the GPUs, with what it needs."""
    try:
        miss = api.plan(PlanRequest.of({**fields, "top": 1})).nearest_miss
    except ConfigError:
        return  # no layout keeps the rules, which is said better of the batch that was asked for
    if miss is None:
        return
    larger = [remedy for remedy in miss.remedies if remedy.change.startswith("more chips")]
    needs = f"; needs at least {larger[0].num_chips} GPUs" if larger else ""
    raise NothingFits(
        f"does not fit: {miss.over_bytes / GIB:.1f} GiB too much on the fullest GPU{needs}"
    )


def _near(gbs: int) -> Iterator[int]:
    """The batch, then others by their distance, the larger of equals first."""
    step = max(1, gbs // 128)
    yield gbs
    for count in range(1, _TRIES):
        yield from (batch for batch in (gbs + step * count, gbs - step * count) if batch > 0)


_STUDY = "study"
WORTH_SAYING = 1.02
"""What a study tells apart (`StudyLimits.tolerance`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Everything that is settled before the first run."""

    settings: TrainSettings
    prepared: Prepared
    """Its members are the candidates, the fastest predicted first."""
    tuning: Tuning
    names: Mapping[str, str]
    """Of a candidate's files, by its run id."""
    size_in_b: float
    platform: Platform
    notes: tuple[str, ...]
    """What was chosen for the user, and what has no effect."""

    @property
    def folder(self) -> Path:
        return Path(self.settings.logs)

    @property
    def members(self) -> tuple[Candidate, ...]:
        return self.prepared.candidates.members


def search_of(config: Mapping[str, Any]) -> Search:
    """Return the search of a configuration; ConfigError names the nearest that can be run."""
    settings = TrainSettings.of(config)
    model = model_of_settings(settings)
    platform = platform_of(config)
    local = platform.is_local
    gbs, given = wanted_batch(settings, model)
    program = config.get("program")
    software = software_of(str(config.get("software", "auto")), program=program, local=local)
    ready = prepare_search(
        settings, model, software=software, program=program, gbs=gbs, given=given, local=local
    )
    size = settings.model_size_in_b or round(model_params(model).total / 1e9, 2)
    return Search(
        settings=settings,
        prepared=ready.prepared,
        tuning=_tuning(settings, config, ready.trial, platform),
        names=_names(ready.prepared.candidates.members, settings, size),
        size_in_b=size,
        platform=platform,
        notes=(*_batch_notes(gbs, ready.gbs, given), *_faster_elsewhere(ready), *platform.notes),
    )


def _tuning(
    settings: TrainSettings, config: Mapping[str, Any], trial: Trial, platform: Platform
) -> Tuning:
    budget = config["budget"]
    limits = StudyLimits(
        max_runs=settings.limit_search_runs,
        parallel=platform.parallel,
        minutes_per_run=float(settings.max_minutes_per_run),
        tolerance=_number(config, "tolerance"),
        confidence=_number(config, "confidence"),
        budget=None if budget is None else read_budget(str(budget)),
        run_all=config["run_all"],
    )
    return Tuning(
        folder=Path(settings.logs) / _STUDY,
        trial=trial,
        limits=limits,
        launcher=platform.launcher,
        job=platform.job,
        tracking=_tracking(config["wandb"]),
    )


def _number(config: Mapping[str, Any], key: str) -> float:
    """A number of the study; its range is StudyLimits' to check."""
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{key}={value}: expected a number")
    return float(value)


def _tracking(words: Mapping[str, Any]) -> Tracking:
    """Where runs are shown: Weights & Biases where the `wandb` block enables it."""
    if not words.get("enable"):
        return Tracking()
    key_file = words.get("api_key_file")
    return Tracking(
        wandb_project=str(words["project"]),
        wandb_key=None if key_file is None else read_key(Path(key_file)),
    )


def _batch_notes(wanted: int, used: int, given: bool) -> list[str]:
    if given:
        return []
    if used == wanted:
        return [
            f"global batch {used}: the rule of AutoConfigurator for this size and length;"
            " train_settings.global_batch_size sets another"
        ]
    return [
        f"global batch {used} in place of {wanted}, the rule of AutoConfigurator, which no layout"
        " of these GPUs divides"
    ]


def _faster_elsewhere(ready: Ready) -> list[str]:
    """Say where a layout that this software can't run is predicted to be clearly faster."""
    problem, first = ready.prepared.problem, ready.prepared.candidates.members[0]
    request = problem.request.model_copy(update={"top": 1, "fastest": True})
    best = next(iter(search_problem(replace(problem, request=request)).plans), None)
    if best is None or best.fits != "yes" or first.predicted.step_s <= best.step_s * WORTH_SAYING:
        return []
    gain = first.predicted.step_s / best.step_s - 1
    other = ""
    if ready.trial.software == "nemo1-script":
        other = "; software=megatron-lm searches with those of Megatron-LM"
    return [
        f"{best.layout.words()}, which {ready.trial.software} can't run, is predicted {gain:.0%}"
        f" faster than all candidates{other}"
    ]


def _names(members: Sequence[Candidate], settings: TrainSettings, size: float) -> dict[str, str]:
    names: dict[str, str] = {}
    family, nodes = settings.family, settings.num_nodes
    for member in members:
        name = candidate_name(member.layout, family=family, size_in_b=size, nodes=nodes)
        names[member.run_id] = name if name not in names.values() else f"{name}_{member.run_id}"
    return names


def candidate_name(layout: Layout, *, family: str, size_in_b: float, nodes: int) -> str:
    """Return AutoConfigurator's name of a candidate, and behind it what it does not search."""
    act = None if layout.recompute != "full" else layout.recompute_layers or 1
    more = f"_vp_{layout.vpp}" if layout.vpp > 1 else ""
    more += "_selective" if layout.recompute == "selective" else ""
    at = f"tp_{layout.tp}_pp_{layout.pp}_cp_{layout.cp}_ep_{layout.ep}_mbs_{layout.mbs}"
    chunks = f"act_ckpt_{act}_num_mbs_act_None_act_per_pipe_None{more}"
    return f"{family}_{size_in_b:g}b_{nodes}nodes_{at}_{chunks}"
