"""Plans over several kinds of chips as a table for people."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meshwright.report.columns import Column, print_columns
from meshwright.report.layout_words import chunks_words, mixed_words, recompute_words, runs_of
from meshwright.report.plan_table import between, number_words, say, tflops_words
from meshwright.search.result import Plan, PlanResult
from meshwright.values.units import GIB, format_count

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_mixed_miss", "print_mixed_plans"]

_ONE = {"cp": "1", "vpp": "1", "ep": "1"}
"""A column that holds this in every row is left out."""


def _mixed(name: str) -> Callable[[Plan], str]:
    return lambda plan: str(getattr(plan.mixed, name))


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


def _stages(plan: Plan) -> str:
    assert plan.mixed is not None
    return mixed_words(plan.mixed)


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


def _dollar(plan: Plan) -> str:
    return "-" if plan.tokens_per_dollar is None else format_count(plan.tokens_per_dollar)


_COLUMNS: tuple[tuple[Column, Callable[[Plan], str]], ...] = (
    (Column(heading="#"), lambda p: str(p.rank)),
    (Column(heading="stages: chip, tp, layers", justify="left", spare=4, under=True), _stages),
    (Column(heading="cp"), _mixed("cp")),
    (Column(heading="vpp"), _mixed("vpp")),
    (Column(heading="ep"), _mixed("ep")),
    (Column(heading="dp"), _runs("dp")),
    (Column(heading="mbs"), _runs("mbs")),
    (Column(heading="recompute", justify="left", spare=3, under=True), _recompute),
    (Column(heading="chips", spare=1, under=True), _chips),
    (Column(heading="step s"), lambda p: f"{p.step_s:.4g}"),
    (Column(heading="tokens/s/GPU"), lambda p: f"{p.tokens_per_s_per_gpu:.0f}"),
    (Column(heading="MFU %"), lambda p: f"{p.mfu * 100:.1f}"),
    (Column(heading="tokens/$", spare=2), _dollar),
    (Column(heading="GiB"), _memory),
    (Column(heading="fits", justify="left"), lambda p: str(p.fits)),
)


def print_mixed_plans(result: PlanResult, console: Console) -> None:
    """Print what was asked, the ranked plans, what they leave idle, and how near to the best they
    are proven to be."""
    for line in (*_heading(result), ""):
        say(console, line)
    shown = [
        (column, cell)
        for column, cell in _COLUMNS
        if {cell(plan) for plan in result.plans} != {_ONE.get(column.heading, "")}
    ]
    rows = [[cell(plan) for _, cell in shown] for plan in result.plans]
    print_columns(console, [column for column, _ in shown], rows, more="--json and --csv have them")
    for line in ("", *_footing(result)):
        say(console, line)


def _heading(result: PlanResult) -> list[str]:
    facts, request = result.facts, result.request
    active = (
        f", {format_count(facts['active_params'])} active"
        if facts["active_params"] < facts["params"]
        else ""
    )
    batch = f"gbs {request.gbs}" if request.gbs is not None else "gbs searched"
    lines = [
        f"{facts['model']} ({format_count(facts['params'])} parameters{active}), seq"
        f" {request.seq_len}, {batch}, {number_words(request)}, stack {facts['stack']},"
        f" {'up to ' if request.num_gpus is not None else ''}{facts['num_chips']} chips"
    ]
    for pool in facts["pools"]:
        lines.append(
            f"{'up to ' if request.num_gpus is not None else ''}{pool['num_chips']} x"
            f" {pool['chip']}, {pool['chips_per_node']} a node, {tflops_words(pool['peak_tflops'])}"
            f" TFLOPS dense peak, {pool['limit_gib']:.1f} GiB usable, {pool['headroom_gib']:.1f} of"
            " them kept free"
        )
    return lines


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
        f"stands on: {best.provenance['kernels']}; {best.provenance['pipeline']}",
        (
            f"80 % interval of #1: step {between(best.intervals.step_s, 1)} s, memory of its"
            f" fullest stage {between(best.intervals.peak_bytes, GIB)} GiB"
        ),
        f"error against measured runs: {best.intervals.error}",
    ]


def print_mixed_miss(result: PlanResult, console: Console) -> None:
    """Print why nothing fits."""
    for line in (
        *_heading(result),
        "",
        "nothing fits:",
        *(f"  {count:>9} {reason}" for reason, count in result.rejected.items()),
    ):
        say(console, line)
