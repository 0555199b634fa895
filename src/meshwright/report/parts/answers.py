"""From what any command printed to its part of a report, and a report as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from meshwright.report.charts.forms import Bar, Grid, Series, Stack
from meshwright.report.charts.svg import SEQUENCE, number
from meshwright.report.parts.compared import compare_part
from meshwright.report.parts.explain import explain_part
from meshwright.report.parts.memory import memory_part
from meshwright.report.parts.part import (
    Block,
    Part,
    Record,
    Resolve,
    Section,
    Words,
    anything_part,
    present,
    records_info,
    sections_of,
)
from meshwright.report.parts.plan import plan_part
from meshwright.report.parts.serving import loads_part, serving_part
from meshwright.report.parts.sizing import estimate_part, size_part
from meshwright.report.parts.study import study_part
from meshwright.report.parts.training import training_part
from meshwright.values.errors import ConfigError

__all__ = ["accuracy_part", "error_info", "part_of", "report_record"]


def report_record(parts: Sequence[Part]) -> dict[str, Any]:
    """Return what `report --json` prints: answers, and tables and charts as columns and rows."""
    return {"parts": [_part(part) for part in parts]}


def _part(part: Part) -> dict[str, Any]:
    return {
        "kind": part.kind,
        "title": part.title,
        "answer": part.answer,
        "tiles": [asdict(tile) for tile in part.tiles],
        "notes": list(part.notes),
        "sections": [_section(section) for section in part.sections],
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "key": section.key,
        "title": section.title,
        "blocks": [_block(block) for block in section.blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Words):
        return {"form": "words", "lines": list(block.lines)}
    grid = block if isinstance(block, Grid) else block.data
    return {
        "form": type(block).__name__.lower(),
        "key": block.key,
        "title": block.title,
        "sentence": block.sentence,
        "columns": [column.key for column in grid.columns],
        "rows": [list(row) for row in grid.rows],
    }


def accuracy_part(record: Record, name: str, resolve: object) -> Part:
    """Return the median error of every table, and all figures."""
    tables = [{"table": table, **figures} for table, figures in record["tables"].items()]
    chart = error_info(record)
    runs = sum(figures.get("n_time", 0) or 0 for figures in record["tables"].values())
    held = f"{len(tables)} tables of measured runs"
    if runs:
        held = f"{runs:,} measured step times in {len(tables)} tables"
    answer = f"Predictions held against {held}."
    if chart is not None:
        middle = sorted(bar.total for bar in chart.bars)[len(chart.bars) // 2]
        answer = f"{answer[:-1]}: the middle table's median error is {number(middle)} %."
    unanswered = [
        {"table": table, "reason": why, "rows": count}
        for table, found in record["unanswered"].items()
        for why, count in found.items()
    ]
    rows = (records_info(unanswered, key="unanswered"),) if unanswered else ()
    sections = sections_of(
        ("errors", "Errors by table", (*present(chart), records_info(tables, key="tables"))),
        ("unanswered", "Rows that were not answered", rows),
    )
    title = f"Accuracy: {name}"
    return Part(kind="validate", title=title, answer=answer, tiles=(), sections=sections)


def error_info(record: Record) -> Stack | None:
    """Return the median error of step times by table; None where no table has any."""
    found = {
        table: 100 * figures["medape"]
        for table, figures in record["tables"].items()
        if figures.get("medape") is not None
    }
    if not found:
        return None
    bars = tuple(
        Bar(label=table, values=(error,))
        for table, error in sorted(found.items(), key=lambda item: item[1])
    )
    return Stack(
        key="errors",
        title="Median error of predicted step times",
        sentence="|predicted / measured - 1|, half of a table's runs lie below.",
        unit="%",
        series=(Series(key="median_error", title="median error", colour=SEQUENCE[0]),),
        bars=bars,
        over="table",
    )


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
    ({"training", "series", "parts", "goodput"}, training_part),
    ({"makespan_s", "ttft_s", "e2e_s"}, loads_part),
    ({"ladder", "largest_term"}, memory_part),
    ({"plan", "run", "classic", "constants"}, estimate_part),
    ({"series", "tried", "compute_optimal"}, size_part),
    ({"tables", "unanswered"}, accuracy_part),
    ({"rows", "pay", "tokens"}, compare_part),
)
"""Keys that tell what printed an object, the most telling first."""
