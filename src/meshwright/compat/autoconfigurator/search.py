"""A search as AutoConfigurator runs it: a base configuration, candidates that are valid and fit,
and a study over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.ready import (
    Platform,
    Ready,
    platform_of,
    prepare_search,
    software_of,
)
from meshwright.compat.autoconfigurator.settings import (
    TrainSettings,
    model_of_settings,
    wanted_batch,
)
from meshwright.runs.candidates import Candidate
from meshwright.runs.loop import StudyLimits
from meshwright.runs.trackers import Tracking, read_key
from meshwright.runs.trial import Trial
from meshwright.runs.tune import Prepared, Tuning
from meshwright.search.plan import search_problem
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params

__all__ = ["Search", "candidate_name", "search_of"]

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
        """Where everything is written."""
        return Path(self.settings.logs)

    @property
    def members(self) -> tuple[Candidate, ...]:
        """The candidates."""
        return self.prepared.candidates.members


def search_of(config: Mapping[str, Any]) -> Search:
    """Return the search of a composed configuration; ConfigError where nothing can be run, with the
    nearest that can."""
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
    limits = StudyLimits(
        max_runs=settings.limit_search_runs,
        parallel=platform.parallel,
        minutes_per_run=float(settings.max_minutes_per_run),
    )
    return Tuning(
        folder=Path(settings.logs) / _STUDY,
        trial=trial,
        limits=limits,
        launcher=platform.launcher,
        job=platform.job,
        tracking=_tracking(config["wandb"]),
    )


def _tracking(words: Mapping[str, Any]) -> Tracking:
    """Where runs are shown: Weights & Biases where the `wandb` block enables it, its key on the
    first line of a file."""
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
    """Say where a layout that this software can't run is predicted to be clearly faster than the
    fastest candidate."""
    problem, first = ready.prepared.problem, ready.prepared.candidates.members[0]
    request = problem.request.model_copy(update={"top": 1})
    best = next(iter(search_problem(replace(problem, request=request)).plans), None)
    if best is None or best.fits != "yes" or first.predicted.step_s <= best.step_s * WORTH_SAYING:
        return []
    gain = first.predicted.step_s / best.step_s - 1
    other = (
        "; software=megatron-lm searches with those of Megatron-LM"
        if ready.trial.software == "nemo1-script"
        else ""
    )
    return [
        f"{best.layout.words()}, which {ready.trial.software} can't run, is predicted {gain:.0%}"
        f" faster than all candidates{other}"
    ]


def _names(members: Sequence[Candidate], settings: TrainSettings, size: float) -> dict[str, str]:
    names: dict[str, str] = {}
    for member in members:
        name = candidate_name(
            member.layout, family=settings.family, size_in_b=size, nodes=settings.num_nodes
        )
        names[member.run_id] = name if name not in names.values() else f"{name}_{member.run_id}"
    return names


def candidate_name(layout: Layout, *, family: str, size_in_b: float, nodes: int) -> str:
    """Return the name that AutoConfigurator gives a candidate, with what it does not search behind
    it."""
    act = None if layout.recompute != "full" else layout.recompute_layers or 1
    more = f"_vp_{layout.vpp}" if layout.vpp > 1 else ""
    more += "_selective" if layout.recompute == "selective" else ""
    return (
        f"{family}_{size_in_b:g}b_{nodes}nodes_tp_{layout.tp}_pp_{layout.pp}_cp_{layout.cp}_ep_{layout.ep}_mbs_{layout.mbs}"
        f"_act_ckpt_{act}_num_mbs_act_None_act_per_pipe_None{more}"
    )
