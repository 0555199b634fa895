"""From what a command printed to a part of a report."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.report.infos.accuracy import accuracy_part
from meshwright.report.infos.anything import anything_part
from meshwright.report.infos.asked import Resolve
from meshwright.report.infos.explain_part import explain_part
from meshwright.report.infos.memory import memory_part
from meshwright.report.infos.part import Part, Record
from meshwright.report.infos.plan_part import plan_part
from meshwright.report.infos.serving import loads_part, serving_part
from meshwright.report.infos.sizing import estimate_part, size_part
from meshwright.report.infos.study import study_part

__all__ = ["part_of"]


def part_of(record: Record, *, name: str, resolve: Resolve) -> Part:
    """Return what a report says of one answer; `resolve` looks a request up."""
    for keys, make in _KINDS:
        if keys <= set(record):
            return make(record, name, resolve)
    return anything_part(record, name=name)


_KINDS: tuple[tuple[set[str], Callable[[Record, str, Resolve], Part]], ...] = (
    ({"plans", "pareto", "definitions"}, serving_part),
    ({"request", "plans", "rejected", "search"}, plan_part),
    ({"terms", "layers", "rivals", "binding"}, explain_part),
    ({"study", "runs", "gpu_hours"}, study_part),
    ({"makespan_s", "ttft_s", "e2e_s"}, loads_part),
    ({"ladder", "largest_term"}, memory_part),
    ({"plan", "run", "classic", "constants"}, estimate_part),
    ({"series", "tried", "compute_optimal"}, size_part),
    ({"tables", "unanswered"}, accuracy_part),
)
"""Keys that tell what printed an object, the most telling first."""
