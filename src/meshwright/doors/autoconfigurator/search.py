"""A search as AutoConfigurator runs it: a base configuration, candidates that are valid and fit, and a study over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright import api
from meshwright.doors.autoconfigurator.settings import TrainSettings, model_of_settings, request_fields, wanted_batch
from meshwright.errors import ConfigError
from meshwright.exports.jobs import JobOptions
from meshwright.layout import Layout
from meshwright.models.params import model_params
from meshwright.runs.candidates import Candidate
from meshwright.runs.loop import StudyLimits
from meshwright.runs.options import options_of
from meshwright.runs.trackers import Tracking, read_key
from meshwright.runs.trial import OWN_TRAINER, Trial
from meshwright.runs.tune import Prepared, Tuning
from meshwright.search.request import PlanRequest
from meshwright.units import GIB

__all__ = ["NothingFits", "Search", "candidate_name", "search_of"]

LAUNCHERS = {"bcm": "slurm", "bcp": "bcp", "k8s": "k8s", "interactive": "local"}
"""The launcher of runs behind each `cluster_type`."""
_SOFTWARE = ("nemo1-script", "megatron-lm")
"""What candidates are written for, in the order of preference; Megatron-LM takes models that NeMo 1.x has no words for."""
_STUDY = "study"
_TRIES = 24
"""Batches that are tried, nearest first, where the tool's own divides on no layout."""


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
    notes: tuple[str, ...]
    """What was chosen for the user, and what has no effect."""

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.settings.logs)

    @property
    def members(self) -> tuple[Candidate, ...]:
        """The candidates."""
        return self.prepared.candidates.members


def search_of(config: Mapping[str, Any]) -> Search:
    """Return the search of a composed configuration; ConfigError where nothing can be run, with the nearest that can."""
    settings = TrainSettings.of(config)
    model = model_of_settings(settings)
    kind = str(config["cluster_type"])
    local = kind == "interactive"
    gbs, given = wanted_batch(settings, model)
    software = (OWN_TRAINER,) if local and config.get("program") is None else _SOFTWARE
    prepared, trial, used = _prepared(settings, config, model, gbs=gbs, given=given, software=software, local=local)
    members = [member for member in prepared.candidates.members if _asked_for(member, settings)][: settings.limit_search_runs]
    if not members:
        raise ConfigError(_nothing(settings, prepared))
    kept = replace(
        prepared,
        candidates=replace(prepared.candidates, members=tuple(members)),
        options=options_of([member.forecast for member in members]),
    )
    size = settings.model_size_in_b or round(model_params(model).total / 1e9, 2)
    return Search(
        settings=settings,
        prepared=kept,
        tuning=_tuning(settings, config, trial, LAUNCHERS[kind]),
        names=_names(members, settings, size),
        size_in_b=size,
        notes=(*_batch_notes(gbs, used, given), *_idle_words(config)),
    )


def _prepared(
    settings: TrainSettings, config: Mapping[str, Any], model: Any, *, gbs: int, given: bool, software: tuple[str, ...], local: bool
) -> tuple[Prepared, Trial, int]:
    """Prepare with the first software that takes the model and the first batch that works; a batch that the user set is never changed."""
    first: ConfigError | None = None
    for batch in (gbs,) if given else _near(gbs):
        for name in software:
            trial = Trial(software=name, steps=settings.max_steps_per_run, program=None if name == OWN_TRAINER else config.get("program"))
            fields = request_fields(settings, model, gbs=batch, local=local)
            try:
                return api.prepare_study(fields, Tuning(folder=Path(settings.logs), trial=trial)), trial, batch
            except ConfigError as error:
                first = first or error
    assert first is not None
    raise _with_remedy(first, request_fields(settings, model, gbs=gbs, local=local))


class NothingFits(ConfigError):
    """No layout fits these GPUs; the message says what would."""


def _with_remedy(error: ConfigError, fields: Mapping[str, Any]) -> ConfigError:
    """Where the model is too large for the GPUs, say what it needs; else the error stands."""
    try:
        miss = api.plan(PlanRequest.of({**fields, "top": 1})).nearest_miss
    except ConfigError:
        return error
    if miss is None:
        return error
    larger = [remedy for remedy in miss.remedies if remedy.change.startswith("more chips")]
    needs = f"; needs at least {larger[0].num_chips} GPUs" if larger else ""
    return NothingFits(f"does not fit: {miss.over_bytes / GIB:.1f} GiB too much on the fullest GPU{needs}")


def _near(gbs: int) -> list[int]:
    """The batch, then others by their distance; those that more sizes divide come first among equals."""
    step = max(1, gbs // 128)
    return [
        gbs,
        *sorted(
            (gbs + sign * step * count for count in range(1, _TRIES) for sign in (1, -1) if gbs > step * count), key=lambda b: abs(b - gbs)
        ),
    ]


def _asked_for(member: Candidate, settings: TrainSettings) -> bool:
    """Whether a layout fits by prediction and its model parallelism is within the bounds."""
    at = member.layout
    size = at.tp * at.pp * at.cp * at.ep
    low = 1 if settings.min_model_parallel_size == "auto" else settings.min_model_parallel_size
    high = settings.num_gpus * at.ep if settings.max_model_parallel_size == "auto" else settings.max_model_parallel_size
    return member.predicted.fits == "yes" and low <= size <= high


def _nothing(settings: TrainSettings, prepared: Prepared) -> str:
    tightest = min(prepared.candidates.members, key=lambda member: member.predicted.peak_bytes)
    sizes = {member.layout.tp * member.layout.pp * member.layout.cp * member.layout.ep for member in prepared.candidates.members}
    return (
        f"no candidate is left: of {len(prepared.candidates.members)} layouts none fits with min_model_parallel_size="
        f"{settings.min_model_parallel_size} and max_model_parallel_size={settings.max_model_parallel_size} (theirs are "
        f"{', '.join(map(str, sorted(sizes)))}); the smallest needs {tightest.predicted.peak_bytes / 2**30:.1f} GiB"
    )


def _tuning(settings: TrainSettings, config: Mapping[str, Any], trial: Trial, launcher: str) -> Tuning:
    cluster = config["cluster"]
    limits = StudyLimits(
        max_runs=settings.limit_search_runs,
        parallel=1 if launcher == "local" else int(config["parallel_runs"]),
        minutes_per_run=float(settings.max_minutes_per_run),
    )
    tracking = _tracking(config["wandb"])
    if launcher == "local":
        return Tuning(folder=Path(settings.logs) / _STUDY, trial=trial, limits=limits, launcher=launcher, tracking=tracking)
    words = [
        *(["--exclusive"] if cluster.get("exclusive") else []),
        *([f"--mem={cluster['mem']}"] if cluster.get("mem") is not None else []),
    ]
    job = JobOptions(
        image=config.get("training_container"),
        mounts=_mounts(config),
        account=cluster.get("account") or cluster.get("org"),
        partition=cluster.get("partition") or cluster.get("ace"),
        instance=cluster.get("instance"),
        words=tuple(words) if launcher == "slurm" else (),
    )
    return Tuning(folder=Path(settings.logs) / _STUDY, trial=trial, limits=limits, launcher=launcher, job=job, tracking=tracking)


def _tracking(words: Mapping[str, Any]) -> Tracking:
    """Where runs are shown: Weights & Biases where the `wandb` block enables it, its key on the first line of a file."""
    if not words.get("enable"):
        return Tracking()
    key_file = words.get("api_key_file")
    return Tracking(wandb_project=str(words["project"]), wandb_key=None if key_file is None else read_key(Path(key_file)))


def _mounts(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the container sees: the user's mounts, and the tool's, results and data folders under their own names."""
    given = [str(mount) for mount in config.get("container_mounts") or () if mount]
    own = [str(config[key]) for key in ("auto_configurator_path", "base_results_dir", "data_dir") if config.get(key)]
    workspace = config["cluster"].get("workspace")
    if workspace is not None:
        return (f"workspace={workspace}:/workspace", *given)
    absolute = [str(Path(folder).resolve()) for folder in own]
    pairs = [mount if ":" in mount else f"{mount}:{mount}" for mount in (*given, *absolute)]
    return tuple(dict.fromkeys(pairs))


def _batch_notes(wanted: int, used: int, given: bool) -> list[str]:
    if given:
        return []
    if used == wanted:
        return [
            f"global batch {used}: the rule of AutoConfigurator for this size and length; train_settings.global_batch_size sets another"
        ]
    return [f"global batch {used} in place of {wanted}, the rule of AutoConfigurator, which no layout of these GPUs divides"]


def _idle_words(config: Mapping[str, Any]) -> list[str]:
    """Say which words were set and change nothing here."""
    cluster, found = config["cluster"], []
    if cluster.get("srun_args") not in (None, ["--no-container-mount-home"]):
        found.append("cluster.srun_args has no effect: jobs are started by sbatch scripts of ours; put options for sbatch into a job file")
    if cluster.get("gpus_per_task") is not None:
        found.append("cluster.gpus_per_task has no effect: each process has one GPU")
    return found


def _names(members: list[Candidate], settings: TrainSettings, size: float) -> dict[str, str]:
    names: dict[str, str] = {}
    for member in members:
        name = candidate_name(member.layout, family=settings.family, size_in_b=size, nodes=settings.num_nodes)
        names[member.run_id] = name if name not in names.values() else f"{name}_{member.run_id}"
    return names


def candidate_name(layout: Layout, *, family: str, size_in_b: float, nodes: int) -> str:
    """Return the name that AutoConfigurator gives a candidate, with what it does not search behind it."""
    act = None if layout.recompute != "full" else layout.recompute_layers or 1
    more = f"_vp_{layout.vpp}" if layout.vpp > 1 else ""
    more += "_selective" if layout.recompute == "selective" else ""
    return (
        f"{family}_{size_in_b:g}b_{nodes}nodes_tp_{layout.tp}_pp_{layout.pp}_cp_{layout.cp}_ep_{layout.ep}_mbs_{layout.mbs}"
        f"_act_ckpt_{act}_num_mbs_act_None_act_per_pipe_None{more}"
    )
