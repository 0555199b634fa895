"""What a report computes of a plan over several kinds of chips: memory by stage, the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshwright.report.charts.forms import Column, Grid, Stack, Timeline
from meshwright.report.infos.computed import pipeline_info
from meshwright.report.infos.layouts import short_words
from meshwright.report.infos.terms import memory_stack
from meshwright.search.mixed.saved import mixed_layout_of
from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.search.mixed.problem import MixedProblem

__all__ = ["mixed_memory_info", "mixed_timeline_info", "stages_table_info"]


def mixed_memory_info(plan: Mapping[str, Any], problem: MixedProblem) -> Stack:
    """Return memory of every stage by term; chips differ in what they hold, so each stage says its
    own."""
    from meshwright.cost.mixed import price_mixed

    layout = mixed_layout_of(plan, problem)
    memory = price_mixed(layout, problem.site).memory
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
    from meshwright.search.mixed.reprice import mixed_pipeline

    layout = mixed_layout_of(plan, problem)
    return pipeline_info(short_words(plan), layout, lambda: mixed_pipeline(layout, problem.site))


def stages_table_info(plan: Mapping[str, Any]) -> Grid:
    """Return what each stage runs as."""
    keys = ("chip", "layers", "tp", "dp", "mbs", "recompute")
    columns = (
        Column(key="stage", title="stage", digits=6),
        *(
            Column(key=key, title=key, digits=6 if key in ("layers", "tp", "dp", "mbs") else None)
            for key in keys
        ),
        Column(key="peak_gib", title="peak, GiB", digits=3),
    )
    rows = tuple(
        (place, *(stage[key] for key in keys), peak)
        for place, (stage, peak) in enumerate(
            zip(plan["stages"], plan["peak_memory_gib"], strict=True)
        )
    )
    idle = ", ".join(
        f"{part['idle']} {part['chip']}" for part in plan.get("chips", []) if part["idle"]
    )
    sentence = (
        f"Left idle, because they make nothing faster: {idle}." if idle else "Every chip is used."
    )
    return Grid(
        key="pipeline-stages",
        title="Stages of the best plan",
        columns=columns,
        rows=rows,
        sentence=sentence,
    )
