"""Plans over several kinds of chips as a table for people."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from meshwright.report.columns import Column, print_items, say
from meshwright.report.layout_words import chunks_words, recompute_words
from meshwright.report.plan_table import (
    PLAN_FIGURES,
    asked_line,
    chips_line,
    print_rejected,
    sure_line,
    tokens_per_dollar_words,
)
from meshwright.search.result import Plan, PlanResult
from meshwright.values.mixed_layout import mixed_words, runs_of
from meshwright.values.units import GIB

__all__ = ["print_mixed_miss", "print_mixed_plans"]


def _runs(name: str) -> Callable[[Plan], str]:
    """What a field is on each kind, once where it is the same on all."""

    def cell(plan: Plan) -> str:
        assert plan.mixed is not None
        values = [str(getattr(run[0], name)) for run in runs_of(plan.mixed)]
        return values[0] if len(set(values)) == 1 else "/".join(values)

    return cell


def _recompute(plan: Plan) -> str:
    assert plan.mixed is not None
    words = [recompute_words(run) for run in runs_of(plan.mixed)]
    return words[0] if len(set(words)) == 1 else " | ".join(words)


def _memory(plan: Plan) -> str:
    """GiB of each kind's fullest stage."""
    assert plan.mixed is not None
    found: dict[str, float] = {}
    for stage, size in zip(plan.mixed.stages, plan.peak_memory_bytes, strict=True):
        found[stage.chip] = max(found.get(stage.chip, 0.0), size)
    return "/".join(f"{size / GIB:.1f}" for size in found.values())


def _chips(plan: Plan) -> str:
    used, idle = sum(used for _, used, _ in plan.chips), sum(idle for _, _, idle in plan.chips)
    return f"{used}, {idle} idle" if idle else str(used)


_COLUMNS = (
    Column(heading="#", cell=lambda p: str(p.rank)),
    Column(
        heading="stages: chip, tp, layers",
        cell=lambda p: mixed_words(p.mixed),
        justify="left",
        spare=4,
        under=True,
    ),
    Column(heading="cp", cell=lambda p: str(p.mixed.cp), usual="1"),
    Column(heading="vpp", cell=lambda p: str(p.mixed.vpp), usual="1"),
    Column(heading="ep", cell=lambda p: str(p.mixed.ep), usual="1"),
    Column(heading="dp", cell=_runs("dp")),
    Column(heading="mbs", cell=_runs("mbs")),
    Column(heading="recompute", cell=_recompute, justify="left", spare=3, under=True),
    Column(heading="chips", cell=_chips, spare=1, under=True),
    *PLAN_FIGURES,
    Column(heading="tokens/$", cell=tokens_per_dollar_words, spare=2),
    Column(heading="GiB", cell=_memory),
    Column(heading="fits", cell=lambda p: str(p.fits), justify="left"),
)


def print_mixed_plans(result: PlanResult, console: Console) -> None:
    """Print what was asked, the ranked plans, idle chips, and how near the best they are."""
    for line in (*_heading(result), ""):
        say(console, line)
    print_items(console, _COLUMNS, result.plans, more="--json and --csv have them")
    for line in ("", *_footing(result)):
        say(console, line)


def _heading(result: PlanResult) -> list[str]:
    most = "up to " if result.request.num_gpus is not None else ""
    first = f"{asked_line(result)}, {most}{result.facts['num_chips']} chips"
    return [first, *(f"{most}{chips_line(pool)}" for pool in result.facts["pools"])]


def _footing(result: PlanResult) -> list[str]:
    best, proof = result.plans[0], result.proof
    assert proof is not None and best.mixed is not None
    used = ", ".join(
        f"{count} {name}{f' ({idle} idle)' if idle else ''}" for name, count, idle in best.chips
    )
    found = (
        "no plan of the space is faster"
        if proof.gap_frac == 0
        else f"no plan is faster by more than {proof.gap_frac:.2%}"
    )
    ranked = {"step_time": found}.get(result.request.objective, found.replace("faster", "better"))
    return [
        f"#1 uses {used}",
        *(
            f"#{plan.rank} has unlike chunks on its stages, layers round by round:"
            f" {chunks_words(plan.mixed)}"
            for plan in result.plans
            if plan.mixed is not None and plan.mixed.chunks is not None
        ),
        (
            f"proof by the closed form that ranks: {ranked} ({result.layouts} ways to cut,"
            f" {proof.boxes} boxes split, {proof.solved} solved in {result.seconds:.2f} s)"
        ),
        *result.notes,
        f"#1 {sure_line(best)} of its fullest stage",
    ]


def print_mixed_miss(result: PlanResult, console: Console) -> None:
    """Print why nothing fits."""
    print_rejected(_heading(result), result, console)
