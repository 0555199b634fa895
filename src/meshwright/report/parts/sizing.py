"""What a report says of `estimate --json` and `size --json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.report.charts.forms import (
    Axis,
    Bar,
    Grid,
    Group,
    Guide,
    Point,
    Points,
    Series,
    Stack,
)
from meshwright.report.charts.svg import BEST, SEQUENCE, number
from meshwright.report.parts.part import (
    Block,
    Part,
    Record,
    Tile,
    asked_words,
    between_words,
    layout_words,
    memory_stack,
    records_info,
    sections_of,
    short_words,
    tiles_of,
    time_stack,
    values_info,
)
from meshwright.report.parts.plan import sources_info
from meshwright.values.units import format_count

__all__ = ["days_info", "estimate_answer_info", "estimate_part", "size_part", "tried_info"]

_DAYS = {
    "train": ("training", SEQUENCE[0]),
    "evaluation": ("evaluation", SEQUENCE[2]),
    "checkpoints_and_failures": ("checkpoints and failures", BEST),
}


def estimate_answer_info(record: Record) -> str:
    """Say how long and how much."""
    asked = asked_words(record["request"])
    if record["plan"] is None or record["run"] is None:
        return f"{asked}: no layout fits, so nothing can be trained."
    run = record["run"]
    cost = "" if run["usd"] is None else f", {run['usd']:,.0f} dollars"
    limits = (
        f" Broken: {'; '.join(map(_words, record['broken_limits']))}."
        if record["broken_limits"]
        else ""
    )
    return (
        f"{format_count(run['tokens'])} tokens of {asked} take {number(run['days'])} days (80 %:"
        f" {between_words(run['interval']['days'])}){cost}, on {run['chips']} chips at"
        f" {100 * run['goodput']:.1f} % goodput.{limits}"
    )


def _words(value: object) -> str:
    return (
        ", ".join(f"{key} {inner}" for key, inner in value.items())
        if isinstance(value, Mapping)
        else str(value)
    )


def days_info(run: Mapping[str, Any]) -> Stack:
    """Return days by what they are spent on."""
    series = tuple(
        Series(key=key, title=title, colour=colour) for key, (title, colour) in _DAYS.items()
    )
    low, high = run["interval"]["days"]
    values = tuple(run["time_days"][part.key] for part in series)
    return Stack(
        key="days",
        title="Days by what they are spent on",
        sentence="Whiskers: 80 % interval of the step time, carried to the sum.",
        unit="days",
        series=series,
        bars=(Bar(label="this cluster", values=values, low=low, high=high),),
        over="cluster",
    )


def _run_tiles(run: Mapping[str, Any]) -> tuple[Tile, ...]:
    hourly, co2 = number(run["usd_per_chip_hour"] or 0), number(run["tonnes_co2"] or 0)
    failures = f"a failure every {number(run['mtbf_hours'])} h"
    return tiles_of(
        ("Days", number(run["days"]), f"80 %: {between_words(run['interval']['days'])}"),
        ("Cost", None if run["usd"] is None else f"${run['usd']:,.0f}", f"{hourly} a chip-hour"),
        ("Energy", None if run["mwh"] is None else f"{number(run['mwh'])} MWh", f"{co2} t CO2"),
        ("Goodput", f"{100 * run['goodput']:.1f} %", failures),
    )


def estimate_part(record: Record, name: str, resolve: object) -> Part:
    """Return days, cost and energy, the plan that they stand on, and every constant."""
    run, plan = record["run"], record["plan"]
    days: list[Block] = []
    if run is not None and plan is not None:
        days = [days_info(run), _flat(run, "run", "Figures of the run")]
    others = record["other_clusters"]
    constants = _flat(record["constants"], "constants", "Constants")
    sections = sections_of(
        ("days", "How long it takes", days),
        ("plan", "The plan it stands on", _plan_blocks(plan) if days else ()),
        (
            "others",
            "Other clusters",
            (records_info(others, key="other_clusters"),) if others else (),
        ),
        ("constants", "What it stands on", (constants, *((sources_info(plan),) if plan else ()))),
    )
    return Part(
        kind="estimate",
        title=asked_words(record["request"]),
        answer=estimate_answer_info(record),
        tiles=_run_tiles(run) if run is not None else (),
        sections=sections,
        notes=(_closed_form(record["classic"]),),
    )


def _closed_form(classic: Mapping[str, Any]) -> str:
    return (
        f"The closed form beside it: {number(classic['days'])} days at"
        f" {number(classic['tflops_per_gpu'])} TFLOPS a GPU."
    )


def _flat(values: Mapping[str, Any], key: str, title: str) -> Grid:
    return replace(values_info(values), key=key, title=title)


def _plan_blocks(plan: Record) -> tuple[Block, ...]:
    words = f"--layout {layout_words(plan)}"
    time = time_stack(
        [(short_words(plan), plan)], key="time", title="Step time by term", sentence=words
    )
    bars = [(short_words(plan), plan["memory"])]
    memory = memory_stack(
        bars,
        key="memory",
        title="Memory of the fullest stage",
        sentence="",
        limit_gib=None,
        over="layout",
    )
    return time, memory


def tried_info(record: Record) -> Points:
    """Return days over size of every model that was tried, against the days that there are."""
    best = record["best"]["params"] if record["best"] else None
    tried = [
        Point(x=one["params"] / 1e9, y=one["days"], label=format_count(one["params"]))
        for one in record["tried"]
        if one["days"] is not None
    ]
    chosen = [p for p in tried if best is not None and p.x == best / 1e9]
    line = (
        ((min(p.x for p in tried), record["days"]), (max(p.x for p in tried), record["days"]))
        if tried
        else ()
    )
    return Points(
        key="tried",
        title="Days over the size of the model",
        sentence=f"Shapes of the {record['series']} series that were priced with their best plans.",
        x=Axis(key="params_billions", title="10^9 parameters"),
        y=Axis(key="days", title="days", from_zero=True),
        groups=(
            Group(
                title="tried", colour=SEQUENCE[0], points=tuple(p for p in tried if p not in chosen)
            ),
            Group(
                title="largest that keeps the days",
                colour=BEST,
                points=tuple(chosen),
                mark="diamond",
            ),
        ),
        guides=(Guide(title=f"{number(record['days'])} days", points=line),) if line else (),
    )


def size_part(record: Record, name: str, resolve: object) -> Part:
    """Return the largest model, its shape, what was tried, and the plan that it stands on."""
    best, classic = record["best"], record["classic"]
    closed = (
        f"The closed form says {format_count(classic['params'])} at"
        f" {number(classic['tflops_per_gpu'])} TFLOPS a GPU."
    )
    tokens = format_count(record["tokens"]) if record["tokens"] else "20 a parameter"
    asked = f"{record['chips']} chips, {number(record['days'])} days, {tokens} tokens"
    blocks: tuple[Block, ...] = (
        (tried_info(record),) if any(one["days"] is not None for one in record["tried"]) else ()
    )
    shape = (_flat(best["model"], "model", "The model"),) if best else ()
    sections = sections_of(
        ("tried", "Sizes", blocks),
        ("shape", "Its shape", shape),
        ("plan", "The plan it stands on", _plan_blocks(best["plan"]) if best else ()),
        ("sources", "What it stands on", (sources_info(best["plan"]),) if best else ()),
    )
    said = (
        f"{format_count(best['params'])} parameters like {best['like']}:"
        f" {number(best['run']['days'])} days"
        if best
        else "no size of the series does"
    )
    return Part(
        kind="size",
        title=f"Size of a {record['series']} model",
        answer=f"With {asked}{', the largest model is' if best else ':'} {said}. {closed}",
        tiles=_run_tiles(best["run"]) if best else (),
        sections=sections,
    )
