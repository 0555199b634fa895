"""From what a command printed to a part of a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.errors import MeshwrightError
from meshwright.report.infos.anything import anything_part
from meshwright.report.infos.computed import cells_info, stage_memory_info, timeline_info
from meshwright.report.infos.front import cost_front_info, memory_front_info
from meshwright.report.infos.part import Part, Record, Section, Words
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
from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.report.charts.forms import Stack
    from meshwright.search.problem import Problem

__all__ = ["Asked", "part_of"]

Resolve = Callable[[Record], "Problem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The problem behind a request in JSON; None, and why, where it can't be looked up here."""

    problem: Problem | None
    why_not: str = ""

    @property
    def limit_gib(self) -> float | None:
        """What one process may use."""
        return None if self.problem is None else self.problem.setting.limit_bytes / GIB


def part_of(record: Record, *, name: str, resolve: Resolve) -> Part:
    """Return what a report says of one answer; `resolve` looks a request up."""
    for keys, make in _KINDS:
        if keys <= set(record):
            return make(record, name, resolve)
    return anything_part(record, name=name)


def _asked(request: Record, resolve: Resolve) -> Asked:
    try:
        return Asked(problem=resolve(request))
    except MeshwrightError as error:
        return Asked(problem=None, why_not=str(error))


def _plan_part(record: Record, name: str, resolve: Resolve) -> Part:
    asked = _asked(record["request"], resolve)
    sections = [Section(key="plans", title="Plans", blocks=(plans_info(record),))] if record["plans"] else []
    if record["plans"]:
        sections.append(Section(key="time", title="Where the time goes", blocks=(time_info(record),)))
        memory = whole_memory_info(record, limit_gib=asked.limit_gib)
        sections.append(Section(key="memory", title="Where the memory goes", blocks=(*_stages(record, asked), memory)))
        sections += _computed(record, asked)
        fronts = (memory_front_info(record), cost_front_info(record))
        sections.append(Section(key="front", title="What else could be had", blocks=tuple(front for front in fronts if front is not None)))
    if record["rejected"]:
        sections.append(Section(key="rejected", title="What was rejected", blocks=(rejected_info(record),)))
    if record["plans"]:
        sections.append(Section(key="sources", title="What it stands on", blocks=(sources_info(record["plans"][0]),)))
    return Part(
        kind="plan",
        title=asked_words(record["request"]),
        answer=plan_answer_info(record, limit_gib=asked.limit_gib),
        tiles=plan_tiles_info(record, limit_gib=asked.limit_gib),
        sections=tuple(sections),
        notes=(f"The cluster's line and computed charts are missing: {asked.why_not}",) if asked.why_not else (),
    )


def _stages(record: Record, asked: Asked) -> tuple[Stack, ...]:
    return () if asked.problem is None else (stage_memory_info(record["plans"][0], asked.problem),)


def _computed(record: Record, asked: Asked) -> list[Section]:
    """Sections that the request is priced again for."""
    if asked.problem is None:
        return []
    steps = timeline_info(record["plans"][0], asked.problem)
    drawn = Words(lines=(steps,)) if isinstance(steps, str) else steps
    cells = cells_info(cells_of(asked.problem), record["plans"], asked.problem)
    return [
        Section(key="pipeline", title="The pipeline", blocks=(drawn,)),
        Section(key="space", title="The space around it", blocks=(cells,)),
    ]


_KINDS: tuple[tuple[set[str], Callable[[Record, str, Resolve], Part]], ...] = (({"request", "plans", "rejected", "search"}, _plan_part),)
"""Keys that tell what printed an object, the most telling first."""
