"""What a report says of `validate --json` and `serving validate --json`."""

from __future__ import annotations

from meshwright.report.charts.forms import Bar, Series, Stack
from meshwright.report.charts.style import SEQUENCE
from meshwright.report.charts.words import number
from meshwright.report.infos.anything import records_info
from meshwright.report.infos.part import Block, Part, Record, Section

__all__ = ["accuracy_part", "error_info"]


def accuracy_part(record: Record, name: str, resolve: object) -> Part:
    """Return the median error of every table, and all figures."""
    tables = [{"table": table, **figures} for table, figures in record["tables"].items()]
    chart = error_info(record)
    runs = sum(figures.get("n_time", 0) or 0 for figures in record["tables"].values())
    counted = (
        f"{runs:,} measured step times in {len(tables)} tables"
        if runs
        else f"{len(tables)} tables of measured runs"
    )
    answer = f"Predictions held against {counted}."
    if chart is not None:
        middle = sorted(bar.total for bar in chart.bars)[len(chart.bars) // 2]
        answer = (
            f"Predictions held against {counted}: the middle table's median error is"
            f" {number(middle)} %."
        )
    blocks: tuple[Block, ...] = (
        *(() if chart is None else (chart,)),
        records_info(tables, key="tables"),
    )
    unanswered = [
        {"table": table, **{"reason": why, "rows": count}}
        for table, found in record["unanswered"].items()
        for why, count in found.items()
    ]
    sections = [Section(key="errors", title="Errors by table", blocks=blocks)]
    if unanswered:
        sections.append(
            Section(
                key="unanswered",
                title="Rows that were not answered",
                blocks=(records_info(unanswered, key="unanswered"),),
            )
        )
    return Part(
        kind="validate",
        title=f"Accuracy: {name}",
        answer=answer,
        tiles=(),
        sections=tuple(sections),
    )


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
