"""Steps of layouts, written for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from meshwright.errors import ConfigError

if TYPE_CHECKING:
    from meshwright.layout import Layout
    from meshwright.search.problem import Problem
    from meshwright.search.result import Plan, PlanResult

__all__ = ["make_folder", "write_step", "write_steps"]

_VIEWER = "ui.perfetto.dev"
_LEFT_OUT = {"no pipeline": "pp=1 has no pipeline", "closed form": "too many micro batches to be simulated"}
"""Why a plan has no trace, by how its pipeline was priced."""


def make_folder(folder: Path) -> None:
    """Make a folder for traces, or take the one that is there; ConfigError where neither can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made a folder for traces ({error.strerror})") from None


def write_step(path: Path, layout: Layout, problem: Problem) -> None:
    """Write one step of a layout, and say so."""
    _write(path, layout, problem)
    typer.echo(f"trace written to {path}; open it at {_VIEWER}", err=True)


def write_steps(folder: Path, result: PlanResult, problem: Problem) -> None:
    """Write one step of each plan that was simulated, `plan-RANK.json` each, and say which are left out."""
    traced = [plan for plan in result.plans if plan.provenance["pipeline"] not in _LEFT_OUT]
    for plan in traced:
        _write(folder / f"plan-{plan.rank}.json", plan.layout, problem)
    if traced:
        typer.echo(f"traces of {_ranks(traced)} written to {folder}; open them at {_VIEWER}", err=True)
    for kind, reason in _LEFT_OUT.items():
        if plans := [plan for plan in result.plans if plan.provenance["pipeline"] == kind]:
            typer.echo(f"no trace of {_ranks(plans)}: {reason}", err=True)


def _write(path: Path, layout: Layout, problem: Problem) -> None:
    from meshwright.cost.simulate import timeline
    from meshwright.report.trace import chrome_trace, write_trace
    from meshwright.search.refine import pipeline_of

    words = layout.words()
    title = f"{problem.setting.model.name} {words}"
    write_trace(path, chrome_trace(timeline(pipeline_of(problem, layout)), title=title, metadata={"layout": words}))


def _ranks(plans: list[Plan]) -> str:
    """`plan #3`, or `plans #1, #2, #5`."""
    return f"plan{'s' if len(plans) > 1 else ''} {', '.join(f'#{plan.rank}' for plan in plans)}"
