"""The published run that is nearest to a question: what it measured, and what we say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from meshwright.search.problem import Problem, ask, model_of, resolve
from meshwright.search.quote import quotes
from meshwright.search.refine import requote, setting_of
from meshwright.search.request import PlanRequest
from meshwright.values.data import package_rows
from meshwright.values.errors import MeshwrightError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.layout import Layout, parse_layout
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import format_seconds

__all__ = [
    "NearestRun",
    "PublishedRun",
    "axes_of_run",
    "nearest_run",
    "price_run",
    "published_runs",
    "ran_layouts",
    "run_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRun:
    """A line of published.csv, which scripts/distil_published.py writes from published tables."""

    model: str
    chip: str
    num_chips: int
    gpus_per_node: int | None
    stack: str
    precision: str
    seq_len: int
    gbs: int
    layout: str
    """The fields that its source names."""
    step_s: float
    """Measured."""
    by: str
    """Who measured it."""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NearestRun:
    """The published run that is nearest to a question, and what `plan` says of it."""

    run: PublishedRun
    predicted_s: float

    @property
    def error_frac(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.run.step_s - 1.0

    def words(self) -> str:
        """Say it in a line, with its source."""
        return f"{self.figures()}; {self.run.source}"

    def figures(self) -> str:
        """Say what was measured and what we say."""
        run = self.run
        cut = [part for part in run.layout.split(",") if part.partition("=")[0] in (*_AXES, "mbs")]
        return (
            f"nearest published: {run.model}, {run.num_chips} x {run.chip}, {run.precision}, seq"
            f" {run.seq_len}, gbs {run.gbs}, {run.stack}, {' '.join(cut)}:"
            f" {format_seconds(run.step_s)}; we say {format_seconds(self.predicted_s)}"
            f" ({self.error_frac:+.0%})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        names = ("model", "chip", "num_chips", "stack", "precision", "seq_len", "gbs", "layout")
        return {
            **{name: getattr(self.run, name) for name in names},
            "measured_step_s": self.run.step_s,
            "predicted_step_s": self.predicted_s,
            "error_frac": self.error_frac,
            "measured_by": self.run.by,
            "source": self.run.source,
        }


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return the runs of published.csv."""
    return tuple(run_of(row) for row in package_rows("search/published.csv"))


def run_of(row: Mapping[str, str]) -> PublishedRun:
    """Return a row of published.csv by its fields' types."""
    cells: dict[str, Any] = dict(row)
    cells |= {name: int(row[name]) for name in ("num_chips", "seq_len", "gbs")}
    cells["gpus_per_node"] = int(row["gpus_per_node"]) if row["gpus_per_node"] else None
    return PublishedRun(**{**cells, "step_s": float(row["step_s"])})


def nearest_run(problem: Problem) -> NearestRun | None:
    """Return the published run that is nearest to a question, priced as `plan` would have priced
    it; None where none is of its model, on a chip of the same maker, or of its chip and kind of
    model.

    Formula:  the least of (another chip, another model, another number format, another software)
              in this order, then of the octaves between parameters, chips and tokens a sequence
    Units:    counts and octaves.
    Source:   the order is by what moves a step most: what a chip does differs more between chips
              than between models of one kind.
    Valid:    training of all weights on one kind of chip.
    Checked:  tests/search/test_published.py
    """
    if problem.setting.work.lora_rank or problem.request.finetune is not None:
        return None  # the runs train all weights from the beginning
    near = sorted(
        (far, place)
        for place, run in enumerate(published_runs())
        if (far := _distance(run, problem)) is not None
    )
    for _, place in near[:3]:
        found = price_run(published_runs()[place])
        if found is not None:
            return found
    return None


def _distance(run: PublishedRun, problem: Problem) -> tuple[float, ...] | None:
    """How far a run is from a question; None where it tells nothing of it."""
    setting = problem.setting
    model = setting.model
    chip, theirs = setting.pool.node.chip, _model(run.model)
    other_chip, other_model = find_chip(run.chip).name != chip.name, not _is_same(theirs, model)
    if other_chip and find_chip(run.chip).vendor != chip.vendor:
        return None
    alike = (theirs.moe is None) == (model.moe is None) and theirs.family == model.family
    if other_model and (other_chip or not alike):
        return None
    software = run.stack.partition("@")[0] != setting.stack.name.partition("@")[0]
    octaves = (
        abs(math.log2(model_params(theirs).total / model_params(model).total))
        + abs(math.log2(run.num_chips / problem.num_chips))
        + abs(math.log2(run.seq_len / setting.work.seq_len))
    )
    return (
        float(other_chip + other_model),
        float(other_chip),
        float(run.precision != setting.work.precision) + float(software),
        octaves,
    )


@cache
def _model(name: str) -> ModelSpec:
    return model_of(name)


def _is_same(one: ModelSpec, other: ModelSpec) -> bool:
    """Whether two models cost the same: the same dims under any name."""
    return one.name == other.name or model_params(one) == model_params(other)


@cache
def price_run(run: PublishedRun) -> NearestRun | None:
    """Return a run as its names alone are priced; None where a rule of today refuses it."""
    request = PlanRequest(
        model=run.model,
        cluster=f"{run.chip}:{run.num_chips}",
        gpus_per_node=run.gpus_per_node,
        stack=run.stack,
        precision=run.precision,
        seq_len=run.seq_len,
        gbs=run.gbs,
    )
    try:
        problem = resolve(request)
        asked = ask(run.layout, problem)
        [quote] = requote(quotes([asked.layout], setting_of(problem)), problem)
    except MeshwrightError:
        return None
    return NearestRun(run=run, predicted_s=quote.step_s)


_AXES = ("tp", "cp", "pp", "vpp", "ep")


def axes_of_run(layout: Layout) -> tuple[int, ...]:
    """Return what `ran_layouts` knows layouts by."""
    return tuple(getattr(layout, name) for name in _AXES)


def ran_layouts(problem: Problem) -> frozenset[tuple[int, ...]]:
    """Return how published runs of the same model on the same chip were cut: tp, cp, pp, vpp,
    ep."""
    setting = problem.setting
    chip = setting.pool.node.chip.name
    return frozenset(
        axes_of_run(replace(Layout(), **parse_layout(run.layout)))
        for run in published_runs()
        if find_chip(run.chip).name == chip and _is_same(_model(run.model), setting.model)
    )
