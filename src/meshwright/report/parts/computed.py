"""What a report computes from a plan's request by the same cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.cost.mixed import price_mixed
from meshwright.cost.schedules import Pipeline
from meshwright.cost.simulate import timeline
from meshwright.report.charts.forms import (
    Axis,
    Bar,
    Grid,
    Group,
    Guide,
    Heat,
    HeatCell,
    Op,
    Point,
    Points,
    Series,
    Stack,
    Timeline,
    table_of,
)
from meshwright.report.charts.svg import SEQUENCE, TIME_COLOURS, number
from meshwright.report.charts.timeline import KINDS
from meshwright.report.parts.part import layout_of, memory_stack, short_words
from meshwright.search.exhaustive import (
    Cell,
    Cells,
)
from meshwright.search.mixed.front import mixed_layout_of
from meshwright.search.mixed.problem import MixedProblem, of_pools
from meshwright.search.mixed.reprice import mixed_pipeline
from meshwright.search.plan import Scaled
from meshwright.search.problem import Problem
from meshwright.search.quote import quotes
from meshwright.search.refine import pipeline_of, too_long
from meshwright.search.result import layout_dict
from meshwright.values.layout import Layout
from meshwright.values.mixed_layout import MixedLayout
from meshwright.values.units import GIB

__all__ = [
    "cells_info",
    "mixed_memory_info",
    "mixed_timeline_info",
    "pipeline_info",
    "scaling_info",
    "stage_memory_info",
    "stage_time_info",
    "stages_table_info",
    "timeline_info",
]

PIECES = 240
"""Of a step, in which a strip says how busy stages are."""
ROUNDS = 2
"""Rounds of as many micro batches as there are stages that a timeline opens on."""
SAMPLE = 4
"""Rounds that stand for a step with too many operations to simulate."""


def stage_memory_info(plan: Mapping[str, Any], problem: Problem) -> Stack:
    """Return a plan's memory, every stage of it."""
    [quote] = quotes([layout_of(plan["layout"])], problem.setting)
    bars = [
        (
            f"stage {stage.stage}, {stage.num_layers} layers",
            {term: held / GIB for term, held in stage.memory_bytes.items()},
        )
        for stage in quote.stages
    ]
    sentence = (
        f"Stage {quote.fullest.stage} is the fullest: early stages hold activations of more micro"
        " batches, the last one the loss."
    )
    return memory_stack(
        bars,
        key="stages",
        title=f"Memory by stage of {short_words(plan)}",
        sentence=sentence if len(bars) > 1 else "One stage holds the whole model.",
        limit_gib=problem.setting.limit_bytes / GIB,
    )


def timeline_info(plan: Mapping[str, Any], problem: Problem) -> Timeline | str:
    """Return one step of a plan's pipeline, or a sentence if there is none or it is too long."""
    layout = layout_of(plan["layout"])
    return pipeline_info(short_words(plan), layout, lambda: pipeline_of(problem, layout))


def pipeline_info(
    name: str, layout: Layout | MixedLayout, pipeline: Callable[[], Pipeline]
) -> Timeline | str:
    """Return a step of a pipeline that opens on its warm-up and two rounds; a sentence where there
    is none to draw."""
    if layout.pp == 1:
        return "The best plan has no pipeline (pp=1), so there is no timeline."
    micro, run = layout.num_microbatches, pipeline()
    shortened = too_long(layout) and micro > SAMPLE * layout.pp
    if shortened:
        run = replace(run, num_microbatches=SAMPLE * layout.pp)
    ops = tuple(
        Op(
            stage=o.stage,
            kind=o.kind,
            chunk=o.chunk,
            microbatch=o.microbatch,
            start_s=o.start_s,
            end_s=o.end_s,
        )
        for o in timeline(run)
    )
    step_s = max(op.end_s for op in ops)
    return Timeline(
        key="timeline",
        title=f"Pipeline of {name}",
        sentence=_pipeline_words(layout, ops, step_s, shortened=shortened),
        stages=layout.pp,
        step_s=step_s,
        ops=ops,
        opening_s=_opening_s(ops, layout),
        density=_density(ops, layout.pp, step_s),
    )


def _pipeline_words(
    layout: Layout | MixedLayout, ops: Sequence[Op], step_s: float, *, shortened: bool
) -> str:
    busy = sum(op.end_s - op.start_s for op in ops) / (layout.pp * step_s)
    words = (
        f"{layout.num_microbatches:,} micro batches through {layout.pp} stages of {layout.vpp}"
        f" chunk{'s' if layout.vpp > 1 else ''}: stages work {100 * busy:.1f} % of the pipeline's"
        f" {number(step_s)} s."
    )
    if shortened:
        return (
            f"{words} These are {SAMPLE * layout.pp:,} micro batches: all of them are too many"
            " operations to simulate here, and rounds in the middle repeat."
        )
    return f"{words} Gradient exchange and optimizer come after it."


def _opening_s(ops: Sequence[Op], layout: Layout | MixedLayout) -> float | None:
    """When the first stage has sent two rounds of micro batches back; None where that is all."""
    backs = sorted(op.end_s for op in ops if op.stage == 0 and op.kind == "B")
    rounds = ROUNDS * layout.pp * layout.vpp
    return backs[rounds - 1] if rounds < len(backs) else None


def _density(ops: Sequence[Op], stages: int, step_s: float) -> tuple[tuple[float, ...], ...]:
    """The share of each piece of the step that a stage works.

    A stage's work up to a time grows linearly within an operation and stays between two; the
    difference over a piece is what was done in it.
    """
    edges = np.linspace(0.0, step_s, PIECES + 1)
    found = []
    for stage in range(stages):
        own = sorted((op.start_s, op.end_s) for op in ops if op.stage == stage)
        times = np.array([time for pair in own for time in pair])
        lengths = np.array([step for start, end in own for step in (0.0, end - start)])
        done = np.interp(edges, times, np.cumsum(lengths), left=0.0)
        found.append(tuple((np.diff(done) * PIECES / step_s).tolist()))
    return tuple(found)


def stage_time_info(steps: Timeline) -> Stack:
    """Return each stage's time: the sums of its operations, and waiting."""
    kinds = [kind for kind in KINDS if any(op.kind == kind for op in steps.ops)]
    series = (
        *(
            Series(
                key=KINDS[kind][0].replace(" ", "_"), title=KINDS[kind][0], colour=KINDS[kind][1]
            )
            for kind in kinds
        ),
        Series(key="waiting", title="waiting", colour=TIME_COLOURS["bubble"]),
    )
    bars = []
    for stage in range(steps.stages):
        sums = [
            sum(op.end_s - op.start_s for op in steps.ops if op.stage == stage and op.kind == kind)
            for kind in kinds
        ]
        bars.append(Bar(label=f"stage {stage}", values=(*sums, max(0.0, steps.step_s - sum(sums)))))
    busiest = min(range(steps.stages), key=lambda stage: bars[stage].values[-1])
    return Stack(
        key="stage-times",
        title="Time of each stage",
        sentence=f"Stage {busiest} waits least: what it takes longer than others, they wait for.",
        unit="s",
        series=series,
        bars=tuple(bars),
        over="stage",
    )


def cells_info(cells: Cells, plans: Sequence[Mapping[str, Any]], problem: Problem) -> Heat:
    """Return the map of tp x pp; cells of ranked plans have the best one's simulated step."""
    given = problem.request.gbs is not None
    best = {(cell.tp, cell.pp): _heat_cell(cell, problem) for cell in cells.cells}
    for plan in reversed(plans):
        layout = plan["layout"]
        value = plan["step_s"] if given else plan["step_s"] / layout["gbs"]
        there = best.get((layout["tp"], layout["pp"]))
        if plan["fits"] == "yes" and there is not None:
            best[layout["tp"], layout["pp"]] = HeatCell(value=value, detail=short_words(plan))
    how = "all" if cells.is_whole else "a part of the space,"
    return Heat(
        key="cells",
        title="Tensor parallelism against pipeline stages",
        sentence=(
            f"The fastest layout of each pair, of {how} {cells.priced:,} layouts priced by the"
            " closed form for this page; ranked plans stand with their simulated steps."
        ),
        row_axis="tp",
        column_axis="pp",
        rows=cells.tp,
        columns=cells.pp,
        cells=tuple(tuple(best[tp, pp] for pp in cells.pp) for tp in cells.tp),
        value_title="step, s" if given else "s per sequence",
    )


def _heat_cell(cell: Cell, problem: Problem) -> HeatCell:
    if cell.best is None:
        return HeatCell(value=None, reason=cell.reason, possible=False)
    limit = problem.setting.limit_bytes
    over = (cell.used_bytes - limit) / GIB
    if over > 0:
        reason = (
            f"needs {number(cell.used_bytes / GIB)} GiB at the least, {number(over)} more than a"
            f" chip has ({cell.best.words()})"
        )
        return HeatCell(value=None, reason=reason, short=f"+{number(over, digits=2)}")
    value = cell.step_s if problem.request.gbs is not None else cell.step_s / cell.best.gbs
    risk = (
        " (at risk: needs a part of the headroom)"
        if cell.used_bytes > limit - problem.headroom_bytes
        else ""
    )
    return HeatCell(value=value, detail=cell.best.words() + risk)


def scaling_info(found: Sequence[Scaled], problem: Problem) -> Points | str:
    """Return throughput over numbers of chips; a sentence where only one number works."""
    there = [one for one in found if one.layout is not None]
    if len(there) < 2:
        reasons = "; ".join(f"{one.num_chips}: {one.reason}" for one in found if one.reason)
        return f"No other number of chips works near this layout: {reasons}."
    base = next((one for one in there if one.num_chips == problem.num_chips), there[0])
    points = tuple(_scaled_point(one, base) for one in there)
    level = base.tokens_per_s / base.num_chips
    left_out = "".join(
        f" {one.num_chips} chips: {one.reason}." for one in found if one.layout is None
    )
    return Points(
        key="scaling",
        title="Throughput per GPU over the number of GPUs",
        sentence=(
            "The same batch on more and fewer of the same chips: the fastest layout within half"
            " and twice each axis of the best plan, by the closed form, searched for this page."
            f" Per cent: against {base.num_chips} GPUs.{left_out}"
        ),
        x=Axis(key="gpus", title="GPUs", log=True),
        y=Axis(key="tokens_per_s_per_gpu", title="tokens/s per GPU", from_zero=True),
        groups=(Group(title="predicted", colour=SEQUENCE[0], points=points, joined="line"),),
        guides=(
            Guide(
                title=f"as fast per GPU as {base.num_chips}",
                points=((there[0].num_chips, level), (there[-1].num_chips, level)),
            ),
        ),
    )


def _scaled_point(one: Scaled, base: Scaled) -> Point:
    share = one.tokens_per_s / one.num_chips / (base.tokens_per_s / base.num_chips)
    words = "" if one.layout is None else short_words({"layout": layout_dict(one.layout)})
    return Point(
        x=one.num_chips,
        y=one.tokens_per_s / one.num_chips,
        label=f"{100 * share:.0f} %",
        detail=words,
        named=True,
    )


def mixed_memory_info(plan: Mapping[str, Any], problem: MixedProblem) -> Stack:
    """Return memory of every stage by term; each stage says what its own chip holds."""
    layout = mixed_layout_of(plan, problem)
    memory = price_mixed(layout, of_pools(problem, layout.pools).site).memory
    limits = [part.setting.limit_bytes / GIB for part in problem.parts]
    bars = [
        (
            f"{place}: {stage.chip}, of {limits[stage.pool]:.1f}",
            {term: float(held[place]) / GIB for term, held in memory.items()},
        )
        for place, stage in enumerate(layout.stages)
    ]
    least = min(limits[stage.pool] for stage in layout.stages)
    words = (
        "Each stage is named with its chip and the GiB that a process may use there; the line is"
        " the smallest of these."
    )
    return memory_stack(
        bars, key="stages", title="Memory by stage", sentence=words, limit_gib=least
    )


def mixed_timeline_info(plan: Mapping[str, Any], problem: MixedProblem) -> Timeline | str:
    """Return one step of the pipeline."""
    layout = mixed_layout_of(plan, problem)
    site = of_pools(problem, layout.pools).site
    return pipeline_info(short_words(plan), layout, lambda: mixed_pipeline(layout, site))


def stages_table_info(plan: Mapping[str, Any]) -> Grid:
    """Return what each stage runs as."""
    peaks = zip(plan["stages"], plan["peak_memory_gib"], strict=True)
    idle = ", ".join(
        f"{part['idle']} {part['chip']}" for part in plan.get("chips", []) if part["idle"]
    )
    return table_of(
        [{**stage, "stage": place, "peak": peak} for place, (stage, peak) in enumerate(peaks)],
        ("stage", "stage", 6, "stage"),
        ("chip", "chip", None, "chip"),
        *((key, key, 6, key) for key in ("layers", "tp", "dp", "mbs")),
        ("recompute", "recompute", None, "recompute"),
        ("peak_gib", "peak, GiB", 3, "peak"),
        key="pipeline-stages",
        title="Stages of the best plan",
        sentence=(
            f"Left idle, because they make nothing faster: {idle}."
            if idle
            else "Every chip is used."
        ),
    )
