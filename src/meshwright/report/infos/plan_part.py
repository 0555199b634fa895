"""The part of a report about `plan --json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.report.charts.svg import number
from meshwright.report.explain_json import explanation_record
from meshwright.report.infos.asked import Asked, Resolve, asked_of, drawn, present
from meshwright.report.infos.computed import (
    cells_info,
    mixed_memory_info,
    mixed_timeline_info,
    scaling_info,
    stage_memory_info,
    stage_time_info,
    stages_table_info,
    timeline_info,
)
from meshwright.report.infos.explain import (
    constants_info,
    operators_info,
    rival_steps_info,
    rivals_info,
    roofline_info,
    terms_info,
)
from meshwright.report.infos.front import cost_front_info, memory_front_info
from meshwright.report.infos.part import Block, Part, Record, Section, Words, is_mixed, layout_of
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
from meshwright.search.explain import SAME_SHARE, explain
from meshwright.search.plan import scaling

if TYPE_CHECKING:
    from meshwright.report.charts.forms import Timeline
    from meshwright.search.problem import Problem

__all__ = ["plan_part"]


def plan_part(record: Record, name: str, resolve: Resolve) -> Part:
    """Return the answer, what rivals cost, and all that the request tells when it is priced
    again."""
    asked = asked_of(record["request"], resolve)
    explained = _explained(record, asked)
    sections = _sections(record, asked, explained) if record["plans"] else []
    if record["rejected"]:
        sections.append(
            Section(key="rejected", title="What was rejected", blocks=(rejected_info(record),))
        )
    return Part(
        kind="plan",
        title=asked_words(record["request"]),
        answer=plan_answer_info(record, limit_gib=asked.limit_gib),
        tiles=plan_tiles_info(record, limit_gib=asked.limit_gib),
        sections=tuple(sections),
        notes=(*asked.notes, *_computed_notes(record, explained)),
    )


def _explained(record: Record, asked: Asked) -> Record | None:
    """The best plan, priced again and explained; None where there is none, or the request can't be
    looked up."""
    if asked.problem is None or not record["plans"]:
        return None
    return explanation_record(
        explain(layout_of(record["plans"][0]["layout"]), asked.problem, depth="constants"),
        asked.problem.request,
    )


def _computed_notes(record: Record, explained: Record | None) -> tuple[str, ...]:
    """Say what was computed for the page, and where that does not agree with the answer."""
    if explained is None:
        return ()
    notes = [
        "As `plan` printed them: the answer, plans, times, the fullest stage's memory, fronts and"
        " rejections. All else was computed from the request when this page was made."
    ]
    then, now = record["plans"][0]["step_s"], explained["step_s"]
    if abs(now / then - 1) > SAME_SHARE:
        notes.append(
            f"Priced again, the best plan takes {number(now)} s a step, not {number(then)} s: "
            "the answer comes from another version, or its files have changed. Run `plan` again."
        )
    return tuple(notes)


def _sections(record: Record, asked: Asked, explained: Record | None) -> list[Section]:
    best = record["plans"][0]
    time: tuple[Block, ...] = (time_info(record),)
    memory: tuple[Block, ...] = (whole_memory_info(record, limit_gib=asked.limit_gib),)
    sources: tuple[Block, ...] = (sources_info(best),)
    computed: list[Section] = []
    if asked.problem is not None and explained is not None:
        time += (terms_info(explained),)
        memory = (stage_memory_info(best, asked.problem), *memory)
        sources += (constants_info(explained),)
        computed = _computed(record, explained, asked.problem)
    if asked.mixed is not None and is_mixed(best):
        memory = (mixed_memory_info(best, asked.mixed), *memory)
        steps = _pipeline(mixed_timeline_info(best, asked.mixed))
        computed = [
            Section(key="pipeline", title="The pipeline", blocks=(stages_table_info(best), *steps))
        ]
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
    """Return a step's operations and what each stage does with its time, or the sentence that
    stands in their place."""
    return (Words(lines=(steps,)),) if isinstance(steps, str) else (steps, stage_time_info(steps))


def _computed(record: Record, explained: Record, problem: Problem) -> list[Section]:
    """Sections that the request is priced again for."""
    best = record["plans"][0]
    cells = cells_info(cells_of(problem), record["plans"], problem)
    counts = scaling(problem, layout_of(best["layout"]))
    return [
        Section(
            key="pipeline", title="The pipeline", blocks=_pipeline(timeline_info(best, problem))
        ),
        Section(
            key="operators",
            title="The operators",
            blocks=(*present(roofline_info(explained)), operators_info(explained)),
        ),
        Section(
            key="space",
            title="The space around it",
            blocks=(cells, rival_steps_info(explained), rivals_info(explained)),
        ),
        Section(
            key="scaling",
            title="More chips, fewer chips",
            blocks=(drawn(scaling_info(counts, problem)),),
        ),
    ]
