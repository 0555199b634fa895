"""From what a command printed to a part of a report."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.errors import ConfigError
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

Make = Callable[[Record, str, Resolve], Part]


def part_of(record: Record, *, name: str, resolve: Resolve) -> Part:
    """Return what a report says of one answer; `resolve` looks a request up. ConfigError where it
    is not what a command prints."""
    for keys, make in _KINDS:
        if keys <= set(record):
            try:
                return make(record, name, resolve)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise ConfigError(_misshapen(name, make, error)) from error
    return anything_part(record, name=name)


def _misshapen(name: str, make: Make, error: Exception) -> str:
    if isinstance(error, ConfigError):
        return f"{name}: {error}"
    kind = make.__name__.removesuffix("_part").replace("_", " ")
    missing = (
        f"lacks {error}"
        if isinstance(error, KeyError)
        else f"holds something else than expected ({error})"
    )
    return (
        f"{name}: looks like an answer of {kind}, but {missing}; it may come from another version:"
        " run the command again"
    )


_KINDS: tuple[tuple[set[str], Make], ...] = (
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
