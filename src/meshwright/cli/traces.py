"""Traces of plans as files, and what is said of them."""

from __future__ import annotations

from pathlib import Path

from meshwright.cli.terminal import tell
from meshwright.report.trace import chrome_trace, write_trace
from meshwright.search.mixed.problem import MixedProblem, of_pools
from meshwright.search.problem import Problem
from meshwright.search.refine import reprice, too_long
from meshwright.search.result import Plan, PlanResult
from meshwright.search.traced import TracedStep, traced_layout, traced_mixed
from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import mixed_words

__all__ = ["write_step", "write_steps"]

_VIEWER = "ui.perfetto.dev"
_TOO_LONG = "too many micro batches to be simulated"


def write_step(path: Path, layout: Layout, problem: Problem, *, force: bool = False) -> None:
    """Write one step of a layout, and say so."""
    if too_long(layout):
        tell(f"no trace: {_TOO_LONG}")
        return
    [priced] = reprice(problem, [layout])
    step = traced_layout(problem, layout, priced.time_s)
    _write(path, layout.words(), problem.setting.model.name, step, force=force)
    tell(f"trace written to {path}; open it at {_VIEWER}")


def write_steps(
    folder: Path, result: PlanResult, problem: Problem | MixedProblem, *, force: bool = False
) -> None:
    """Write a step of each plan that can be simulated, `plan-RANK.json`; name those left out."""
    long = [plan for plan in result.plans if too_long(plan.mixed or plan.layout)]
    traced = [plan for plan in result.plans if plan not in long]
    for plan in traced:
        _write_plan(folder / f"plan-{plan.rank}.json", plan, problem, force=force)
    if traced:
        tell(f"traces of {_ranks(traced)} written to {folder}; open them at {_VIEWER}")
    if long:
        tell(f"no trace of {_ranks(long)}: {_TOO_LONG}")


def _write_plan(path: Path, plan: Plan, problem: Problem | MixedProblem, *, force: bool) -> None:
    if isinstance(problem, MixedProblem):
        assert plan.mixed is not None, "plans of several pools say their stages"
        words, model = mixed_words(plan.mixed), problem.site.model.name
        own = of_pools(problem, plan.mixed.pools)
        step = traced_mixed(plan.mixed, own.site, plan.time_s)
    else:
        words, model = plan.layout.words(), problem.setting.model.name
        step = traced_layout(problem, plan.layout, plan.time_s)
    _write(path, words, model, step, force=force)


def _write(path: Path, words: str, model: str, step: TracedStep, *, force: bool) -> None:
    trace = chrome_trace(step, title=f"{model} {words}", metadata={"layout": words})
    write_trace(path, trace, force=force)


def _ranks(plans: list[Plan]) -> str:
    """`plan #3`, or `plans #1, #2, #5`."""
    return f"plan{'s' if len(plans) > 1 else ''} {', '.join(f'#{plan.rank}' for plan in plans)}"
