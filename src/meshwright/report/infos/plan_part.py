"""The part of a report about `plan --json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.report.explain_json import explanation_record
from meshwright.report.infos.asked import Asked, Resolve, asked_of, drawn, present
from meshwright.report.infos.computed import cells_info, scaling_info, stage_memory_info, stage_time_info, timeline_info
from meshwright.report.infos.explain import constants_info, operators_info, rival_steps_info, rivals_info, roofline_info, terms_info
from meshwright.report.infos.front import cost_front_info, memory_front_info
from meshwright.report.infos.layouts import is_mixed, layout_of
from meshwright.report.infos.mixed import mixed_memory_info, mixed_timeline_info, stages_table_info
from meshwright.report.infos.part import Block, Part, Record, Section, Words
from meshwright.report.infos.plan import (
    asked_words,
    plan_answer_info,
    plan_tiles_info,
    plans_info,
    rejected_info,
    sources_info,
    time_info,
    whole_memory_info,
)
from meshwright.search.cells import cells_of
from meshwright.search.explain import explain
from meshwright.search.scaling import scaling

if TYPE_CHECKING:
    from meshwright.report.charts.forms import Timeline
    from meshwright.search.problem import Problem

__all__ = ["plan_part"]


def plan_part(record: Record, name: str, resolve: Resolve) -> Part:
    """Return the answer, what rivals cost, and all that the request tells when it is priced again."""
    asked = asked_of(record["request"], resolve)
    sections = _sections(record, asked) if record["plans"] else []
    if record["rejected"]:
        sections.append(Section(key="rejected", title="What was rejected", blocks=(rejected_info(record),)))
    return Part(
        kind="plan",
        title=asked_words(record["request"]),
        answer=plan_answer_info(record, limit_gib=asked.limit_gib),
        tiles=plan_tiles_info(record, limit_gib=asked.limit_gib),
        sections=tuple(sections),
        notes=asked.notes,
    )


def _sections(record: Record, asked: Asked) -> list[Section]:
    best = record["plans"][0]
    time: tuple[Block, ...] = (time_info(record),)
    memory: tuple[Block, ...] = (whole_memory_info(record, limit_gib=asked.limit_gib),)
    sources: tuple[Block, ...] = (sources_info(best),)
    computed: list[Section] = []
    if asked.problem is not None:
        explained = explanation_record(explain(layout_of(best["layout"]), asked.problem), asked.problem.request)
        time += (terms_info(explained),)
        memory = (stage_memory_info(best, asked.problem), *memory)
        sources += (constants_info(explained),)
        computed = _computed(record, explained, asked.problem)
    if asked.mixed is not None and is_mixed(best):
        memory = (mixed_memory_info(best, asked.mixed), *memory)
        steps = _pipeline(mixed_timeline_info(best, asked.mixed))
        computed = [Section(key="pipeline", title="The pipeline", blocks=(stages_table_info(best), *steps))]
    fronts = (*present(memory_front_info(record)), *present(cost_front_info(record)))
    return [
        Section(key="plans", title="Plans", blocks=(plans_info(record),)),
        Section(key="time", title="Where the time goes", blocks=time),
        Section(key="memory", title="Where the memory goes", blocks=memory),
        *computed,
        Section(key="front", title="What else could be had", blocks=fronts),
        Section(key="sources", title="What it stands on", blocks=sources),
    ]


def _pipeline(steps: Timeline | str) -> tuple[Block, ...]:
    """Return a step's operations and what each stage does with its time, or the sentence that stands in their place."""
    return (Words(lines=(steps,)),) if isinstance(steps, str) else (steps, stage_time_info(steps))


def _computed(record: Record, explained: Record, problem: Problem) -> list[Section]:
    """Sections that the request is priced again for."""
    best = record["plans"][0]
    cells = cells_info(cells_of(problem), record["plans"], problem)
    counts = scaling(problem, layout_of(best["layout"]))
    return [
        Section(key="pipeline", title="The pipeline", blocks=_pipeline(timeline_info(best, problem))),
        Section(key="operators", title="The operators", blocks=(*present(roofline_info(explained)), operators_info(explained))),
        Section(key="space", title="The space around it", blocks=(cells, rival_steps_info(explained), rivals_info(explained))),
        Section(key="scaling", title="More chips, fewer chips", blocks=(drawn(scaling_info(counts, problem)),)),
    ]
