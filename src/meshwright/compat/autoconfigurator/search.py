"""A search as AutoConfigurator runs it: a base configuration, its candidates, and a study."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright import api
from meshwright.compat.autoconfigurator.cluster import Platform, platform_of
from meshwright.compat.autoconfigurator.settings import (
    TrainSettings,
    model_of_settings,
    request_fields,
    wanted_batch,
)
from meshwright.compat.autoconfigurator.training import (
    Corpus,
    TrainedAs,
    corpus_of,
    dropout_of,
    trained_as,
)
from meshwright.runs.budget import read_budget
from meshwright.runs.candidates import Candidate, Candidates, Refusal, fitting_candidates
from meshwright.runs.limits import StudyLimits
from meshwright.runs.trackers import Tracking, read_key
from meshwright.runs.training.request import LEAST_MARGIN_S, written
from meshwright.runs.trial import OWN_TRAINER, Trial
from meshwright.runs.tune import Prepared, Tuning
from meshwright.search.plan import search_problem
from meshwright.search.problem import Problem
from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import Layout
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import GIB, MINUTE_S

__all__ = ["NothingFits", "Search", "Wanted", "max_time", "search_of"]

_SOFTWARE = ("nemo1-script", "nemo2")
"""What candidates are written for, in order; NeMo 1.x has no words for some models."""
_ASKED_FOR = ("megatron-lm",)
"""What they are written for where it is asked for."""
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
    known = ("auto", *_SOFTWARE, *_ASKED_FOR)
    if word not in known:
        raise UnknownNameError("software", word, known)
    if local and program is None:
        if word != "auto":
            raise ConfigError(
                f"software={word}: give program= as well, where its script is on this machine"
            )
        return (OWN_TRAINER,)
    return _SOFTWARE if word == "auto" else (word,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What is searched, before a batch and a software are settled."""

    settings: TrainSettings
    model: ModelSpec
    size_in_b: float
    corpus: Corpus | None
    """None with the embedded trainer, which runs on random tokens."""
    program: str | None
    local: bool

    def fields(self, gbs: int) -> dict[str, Any]:
        """Return the request at a batch."""
        dropout = 0.0 if self.corpus is None else dropout_of(self.settings)
        return request_fields(self.settings, self.model, gbs=gbs, local=self.local, dropout=dropout)

    def trained_as(self, gbs: int) -> TrainedAs:
        """Return how it is trained at a batch."""
        assert self.corpus is not None
        return trained_as(
            self.settings,
            self.model,
            steps=self.settings.steps(gbs),
            size_in_b=self.size_in_b,
            corpus=self.corpus,
        )

    def trial(self, software: str, gbs: int) -> Trial:
        """Return a short run; its settings are those of the whole training, and its command line
        switches off what would only take its time."""
        steps = self.settings.max_steps_per_run
        if software == OWN_TRAINER:
            return Trial(software=software, steps=steps)
        trial = Trial(software=software, steps=steps, program=self.program)
        if not software.startswith("nemo1"):
            return trial
        how, seconds = self.trained_as(gbs), self.settings.max_minutes_per_run * MINUTE_S
        return replace(
            trial,
            settings={**how.settings, "save_dir": "results", "extra": how.short_run},
            values=how.values(whole_run=False) | {"trainer.max_time": max_time(seconds)},
        )


def max_time(seconds: float) -> str:
    """Return NeMo's own limit, which ends a run before the platform does."""
    margin = min(LEAST_MARGIN_S, seconds // 10)
    return written(round(seconds - margin), "days:hours:minutes:seconds")


def prepare_search(wanted: Wanted, *, software: tuple[str, ...], gbs: int, given: bool) -> Ready:
    """Prepare with the first software, and its nearest batch, that works; a given batch is never
    changed."""
    settings, first = wanted.settings, None
    # A batch that all GPUs divide tells a model without words from a batch without layouts.
    dividing = max(1, round(gbs / settings.num_gpus)) * settings.num_gpus
    for name in software:
        for batch in (gbs,) if given else (gbs, dividing):
            try:
                found = _ready(settings, wanted.trial(name, batch), wanted.fields(batch))
            except _NoneLeft:
                raise
            except ConfigError as error:
                first = first or error
            else:
                return found if batch == gbs else _nearest(wanted, name, gbs) or found
            if batch == gbs:
                _require_room(wanted.fields(gbs if given else dividing))
    assert first is not None
    raise first


def _nearest(wanted: Wanted, software: str, gbs: int) -> Ready | None:
    """Return the search at the batch nearest to the wanted one that works."""
    for batch in _near(gbs):
        try:
            return _ready(wanted.settings, wanted.trial(software, batch), wanted.fields(batch))
        except ConfigError:
            continue
    return None


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
    """Other batches by their distance, the larger of equals first."""
    step = max(1, gbs // 128)
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
    how: TrainedAs | None
    """How the whole training is done; None with the embedded trainer."""
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
    size = settings.model_size_in_b or round(model_params(model).total / 1e9, 2)
    own = software == (OWN_TRAINER,)
    wanted = Wanted(
        settings=settings,
        model=model,
        size_in_b=size,
        corpus=None if own else corpus_of(settings, _folder(config)),
        program=program,
        local=local,
    )
    ready = prepare_search(wanted, software=software, gbs=gbs, given=given)
    said = () if wanted.corpus is None else wanted.corpus.notes
    return Search(
        settings=settings,
        prepared=ready.prepared,
        tuning=_tuning(settings, config, ready.trial, platform),
        names=_names(ready.prepared.candidates.members, settings, size),
        size_in_b=size,
        platform=platform,
        notes=(
            *_batch_notes(gbs, ready.gbs, given),
            *said,
            *_other_nemo(ready, software),
            *_faster_elsewhere(ready),
            *platform.notes,
        ),
        how=None if own else wanted.trained_as(ready.gbs),
    )


def _folder(config: Mapping[str, Any]) -> str:
    """The folder of data as jobs see it: Base Command mounts it, all else has it by its path."""
    folder = str(config["data_dir"])
    return folder if config["cluster_type"] == "bcp" else str(Path(folder).resolve())


def _other_nemo(ready: Ready, software: tuple[str, ...]) -> list[str]:
    """Say that NeMo 2.0 stands in for 1.x."""
    if len(software) == 1 or ready.trial.software != "nemo2":
        return []
    return [
        "NeMo 1.x has no words for this model or batch on these GPUs: configurations are recipes of"
        " NeMo 2.0, and need its container: give training_container"
    ]


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
    if ready.trial.software in _SOFTWARE:
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
