"""Steps of layouts, written for Perfetto."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright.errors import ConfigError

if TYPE_CHECKING:
    from meshwright.cost.simulate import Pipeline
    from meshwright.layout import Layout
    from meshwright.search.mixed.problem import MixedProblem
    from meshwright.search.problem import Problem
    from meshwright.search.result import Plan, PlanResult

__all__ = ["make_folder", "write_step", "write_steps"]

_VIEWER = "ui.perfetto.dev"
_LEFT_OUT = {"no pipeline": "pp=1 has no pipeline", "closed form": "too many micro batches to be simulated"}
"""Why a plan has no trace, by how its pipeline was priced."""
_ONCE = {"dp_comm": "exchange between replicas", "optimizer": "optimizer", "overhead": "overhead"}
"""Terms of a step that follow its pipeline, in their order; of the exchange what does not hide behind the last backward."""


def make_folder(folder: Path) -> None:
    """Make a folder for traces, or take the one that is there; ConfigError where neither can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made a folder for traces ({error.strerror})") from None


def write_step(path: Path, layout: Layout, problem: Problem) -> None:
    """Write one step of a layout, and say so."""
    from meshwright.search.refine import pipeline_of, reprice

    [priced] = reprice(problem, [layout])
    _write(path, layout.words(), problem.setting.model.name, pipeline_of(problem, layout), priced.time_s)
    typer.echo(f"trace written to {path}; open it at {_VIEWER}", err=True)


def write_steps(folder: Path, result: PlanResult, problem: Problem | MixedProblem) -> None:
    """Write one step of each plan that was simulated, `plan-RANK.json` each, and say which are left out."""
    traced = [plan for plan in result.plans if plan.provenance["pipeline"] not in _LEFT_OUT]
    for plan in traced:
        _write_plan(folder / f"plan-{plan.rank}.json", plan, problem)
    if traced:
        typer.echo(f"traces of {_ranks(traced)} written to {folder}; open them at {_VIEWER}", err=True)
    for kind, reason in _LEFT_OUT.items():
        if plans := [plan for plan in result.plans if plan.provenance["pipeline"] == kind]:
            typer.echo(f"no trace of {_ranks(plans)}: {reason}", err=True)


def _write_plan(path: Path, plan: Plan, problem: Problem | MixedProblem) -> None:
    from meshwright.report.mixed_words import mixed_words
    from meshwright.search.mixed.problem import MixedProblem
    from meshwright.search.mixed.reprice import mixed_pipeline

    if isinstance(problem, MixedProblem):
        assert plan.mixed is not None, "plans of several pools say their stages"
        _write(path, mixed_words(plan.mixed), problem.site.model.name, mixed_pipeline(plan.mixed, problem.site), plan.time_s)
        return
    from meshwright.search.refine import pipeline_of

    _write(path, plan.layout.words(), problem.setting.model.name, pipeline_of(problem, plan.layout), plan.time_s)


def _write(path: Path, words: str, model: str, pipeline: Pipeline, time_s: Mapping[str, float]) -> None:
    from meshwright.cost.simulate import timeline, transfers
    from meshwright.report.trace import chrome_trace, write_trace

    once_s = {name: time_s[term] for term, name in _ONCE.items()}
    trace = chrome_trace(
        timeline(pipeline), title=f"{model} {words}", metadata={"layout": words}, transfers=transfers(pipeline), once_s=once_s
    )
    write_trace(path, trace)


def _ranks(plans: list[Plan]) -> str:
    """`plan #3`, or `plans #1, #2, #5`."""
    return f"plan{'s' if len(plans) > 1 else ''} {', '.join(f'#{plan.rank}' for plan in plans)}"
