"""What a report says of `why-oom --json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.report.charts.forms import Axis, Grid, Group, Guide, Point, Points, table_of
from meshwright.report.charts.svg import BEST, OTHER, SEQUENCE, number
from meshwright.report.parts.part import (
    Part,
    Record,
    asked_words,
    figure_tiles,
    layout_words,
    memory_stack,
    sections_of,
    short_words,
)
from meshwright.search.titles import MEMORY_READINGS

__all__ = ["fixes_info", "ladder_info", "memory_part", "oom_answer_info"]


def oom_answer_info(record: Record) -> str:
    """Say by how much it is too large, what takes most, and the fastest fix."""
    over, largest = record["over_gib"], MEMORY_READINGS[record["largest_term"]].title
    taken = record["memory"][record["largest_term"]]
    room = (
        f"{number(over)} GiB more than the {number(record['limit_gib'])} there are"
        if over > 0
        else f"{number(-over)} GiB less than there are"
    )
    fits = [rung for rung in record["ladder"] if rung["fits"] == "yes"]
    best = min(fits, key=lambda rung: rung["step_s"] * rung["num_gpus"], default=record["together"])
    fix = (
        ""
        if best is None or over <= 0
        else (
            f" The cheapest fix: {best['fix']} ({number(best['peak_memory_gib'])} GiB,"
            f" {number(best['step_s'])} s a step)."
        )
    )
    words = layout_words(record).replace(",", ", ")
    return (
        f"{words} needs {number(max(record['peak_memory_gib']))} GiB, {room}; {largest} take"
        f" {number(taken)} of them.{fix}"
    )


def ladder_info(record: Record) -> Grid:
    """Return every fix with what it saves and costs."""
    return table_of(
        _rungs(record),
        ("fix", "fix", "wide", "fix"),
        ("gpus", "GPUs", 6, "num_gpus"),
        ("peak_gib", "peak, GiB", 4, "peak_memory_gib"),
        ("saved_gib", "saves, GiB", 3, "saved_gib"),
        ("step_s", "step, s", 4, "step_s"),
        ("percent", "longer by, %", 3, lambda rung: 100 * rung["step_change_frac"]),
        ("fits", "fits", None, "fits"),
        ("labels", "means", "wide", lambda rung: "; ".join(rung["labels"])),
        key="ladder",
        title="Fixes, least slowdown first",
    )


def _rungs(record: Record) -> list[Mapping[str, Any]]:
    return [*record["ladder"], *([record["together"]] if record["together"] else [])]


def fixes_info(record: Record) -> Points:
    """Return each fix by memory and step time, against the card's line."""
    start = Point(
        x=max(record["peak_memory_gib"]), y=record["step_s"], label="as it is", named=True
    )
    rungs = [
        (rung["fits"], Point(x=rung["peak_memory_gib"], y=rung["step_s"], label=rung["fix"]))
        for rung in _rungs(record)
    ]
    times = [start.y, *(point.y for _, point in rungs)]
    line = ((record["limit_gib"], min(times)), (record["limit_gib"], max(times)))
    return Points(
        key="fixes",
        title="What each fix saves and costs",
        sentence="Left of the line fits.",
        x=Axis(key="peak_memory_gib", title="GiB on the fullest chip"),
        y=Axis(key="step_s", title="step, s"),
        groups=(
            Group(
                title="fits",
                colour=SEQUENCE[2],
                points=tuple(p for fits, p in rungs if fits != "no"),
            ),
            Group(
                title="does not fit alone",
                colour=OTHER,
                points=tuple(p for fits, p in rungs if fits == "no"),
                mark="cross",
            ),
            Group(title="as it is", colour=BEST, points=(start,), mark="diamond"),
        ),
        guides=(
            Guide(title=f"{number(record['limit_gib'])} GiB that a process may use", points=line),
        ),
    )


def memory_part(record: Record, name: str, resolve: object) -> Part:
    """Return what fills the memory, and the ladder of fixes."""
    bars = [(f"stage {record['fullest_stage']}, the fullest", record["memory"])]
    words = (
        f"{MEMORY_READINGS[record['largest_term']].title}:"
        f" {MEMORY_READINGS[record['largest_term']].what}."
    )
    stack = memory_stack(
        bars,
        key="memory",
        title="Memory of the fullest stage by term",
        sentence=words,
        limit_gib=record["limit_gib"],
    )
    of = f"{asked_words(record['request'])}: " if "request" in record else ""
    return Part(
        kind="why-oom",
        title=f"{of}{short_words(record)}",
        answer=oom_answer_info(record),
        tiles=figure_tiles(record, limit_gib=record["limit_gib"]),
        sections=sections_of(
            ("memory", "What fills it", (stack,)),
            ("fixes", "What would mend it", (fixes_info(record), ladder_info(record))),
        ),
    )
