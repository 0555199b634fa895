"""What a report says of `plan --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.report.charts.forms import Cell, Column, Grid, Stack
from meshwright.report.charts.svg import number
from meshwright.report.infos.part import (
    Record,
    Tile,
    layout_words,
    memory_stack,
    recompute_words,
    short_words,
    time_stack,
)
from meshwright.search.titles import TIME_READINGS

__all__ = [
    "asked_words",
    "between_words",
    "figure_tiles",
    "plan_answer_info",
    "plan_tiles_info",
    "plans_info",
    "rejected_info",
    "sources_info",
    "time_info",
    "whole_memory_info",
]

SHOWN = 10
"""Plans in a chart; a table has all."""


def asked_words(request: Record) -> str:
    """Write a request's heading: `llama3-70b on h100:256`."""
    model = request["model"]
    name = model if isinstance(model, str) else str(model.get("name", "custom model"))
    return f"{name} on {request['cluster']}"


def between_words(ends: Sequence[float]) -> str:
    """Write an interval."""
    return f"{number(ends[0])} to {number(ends[1])}"


def plan_answer_info(record: Record, *, limit_gib: float | None) -> str:
    """Say in one sentence what to run, or that nothing fits and how near it comes."""
    request = record["request"]
    if not record["plans"]:
        return _no_answer(record)
    best = record["plans"][0]
    layout = layout_words(best).replace(",", ", ")
    sure = (
        ""
        if best["interval"] is None
        else f" (80 %: {between_words(best['interval']['step_s'])} s)"
    )
    room = "" if limit_gib is None else f" of {number(limit_gib)}"
    fits = {
        "yes": "",
        "at risk": ", at risk of running out of memory",
        "no": ", which does not fit",
    }[best["fits"]]
    return (
        f"Run {asked_words(request)} with {layout}: a step takes {number(best['step_s'])} s{sure}, "
        f"{number(best['tokens_per_s_per_gpu'])} tokens/s a GPU, {100 * best['mfu']:.1f} % MFU, "
        f"{number(max(best['peak_memory_gib']))}{room} GiB on the fullest chip{fits}."
    )


def _no_answer(record: Record) -> str:
    asked = asked_words(record["request"])
    miss = record["search"].get("nearest_miss")
    if miss is None:
        return f"{asked}: no layout fits."
    near = (
        f"the nearest, {layout_words(miss)}, needs {number(miss['over_gib'])} GiB more than a"
        " chip has"
    )
    remedy = f" {miss['remedies'][0]['change']} would do." if miss["remedies"] else ""
    return f"{asked}: no layout fits; {near}.{remedy}"


def figure_tiles(plan: Record, *, limit_gib: float | None) -> tuple[Tile, ...]:
    """Return the figures of one priced layout."""
    sure = plan["interval"] or {}
    room = (
        ""
        if limit_gib is None
        else f"{100 * max(plan['peak_memory_gib']) / limit_gib:.0f} % of {number(limit_gib)} GiB; "
    )
    return (
        Tile(
            title="Step time",
            value=f"{number(plan['step_s'])} s",
            note=_sure(sure.get("step_s"), "s"),
        ),
        Tile(
            title="Throughput",
            value=f"{number(plan['tokens_per_s_per_gpu'])} tokens/s",
            note="a GPU",
        ),
        Tile(
            title="MFU",
            value=f"{100 * plan['mfu']:.1f} %",
            note=f"{number(plan['tflops_per_gpu'])} TFLOPS a GPU",
        ),
        Tile(
            title="Peak memory",
            value=f"{number(max(plan['peak_memory_gib']))} GiB",
            note=f"{room}fits: {plan['fits']}",
        ),
    )


def _sure(ends: Sequence[float] | None, unit: str) -> str:
    return "" if ends is None else f"80 %: {between_words(ends)} {unit}"


def plan_tiles_info(record: Record, *, limit_gib: float | None) -> tuple[Tile, ...]:
    """Return the best plan's figures, and what was searched."""
    search = record["search"]
    rejected = sum(record["rejected"].values())
    searched = Tile(
        title="Layouts priced",
        value=f"{search['layouts']:,}",
        note=(
            f"{rejected:,} more rejected; {number(search['seconds'])} s"
            if rejected
            else f"in {number(search['seconds'])} s"
        ),
    )
    return (
        *(figure_tiles(record["plans"][0], limit_gib=limit_gib) if record["plans"] else ()),
        searched,
    )


_AXES = ("tp", "cp", "pp", "vpp", "schedule", "ep", "etp", "dp", "sharding", "mbs", "gbs")


def plans_info(record: Record) -> Grid:
    """Return all plans as a table; an axis that is the same usual value in every plan is left
    out."""
    plans = record["plans"]
    usual = {
        "cp": 1,
        "vpp": 1,
        "schedule": "1f1b",
        "ep": 1,
        "etp": None,
        "sharding": "zero1",
        "gbs": record["request"]["gbs"],
    }
    axes = [
        axis
        for axis in _AXES
        if axis not in usual or any(plan["layout"][axis] != usual[axis] for plan in plans)
    ]
    columns = (
        Column(key="rank", title="#", digits=6),
        *(
            Column(key=axis, title=axis, digits=None if axis in ("sharding", "schedule") else 9)
            for axis in axes
        ),
        Column(key="recompute", title="recompute"),
        *(Column(key=key, title=title, digits=digits) for key, title, digits, _ in _FIGURES),
        *(
            Column(key="fits", title="fits"),
            Column(key="beats_next", title="beats the next by", wide=True),
        ),
        Column(key="layout", title="--layout", wide=True),
    )
    rows = tuple(_row(plan, axes) for plan in plans)
    sentence = (
        "Best first. Sort by a heading; filter by words (selective) or by figures (tp=4 step_s<18)."
    )
    return Grid(
        key="plans",
        title="Ranked plans",
        sentence=sentence,
        columns=columns,
        rows=rows,
        marked=0 if rows else None,
    )


_FIGURES: tuple[tuple[str, str, int, Any], ...] = (
    ("step_s", "step, s", 4, lambda plan: plan["step_s"]),
    ("step_s_low", "low", 3, lambda plan: (plan["interval"] or {}).get("step_s", [None])[0]),
    (
        "step_s_high",
        "high",
        3,
        lambda plan: (plan["interval"] or {}).get("step_s", [None, None])[1],
    ),
    ("tokens_per_s_per_gpu", "tokens/s/GPU", 4, lambda plan: plan["tokens_per_s_per_gpu"]),
    ("mfu_percent", "MFU, %", 3, lambda plan: 100 * plan["mfu"]),
    ("peak_memory_gib", "peak, GiB", 3, lambda plan: max(plan["peak_memory_gib"])),
)


def _row(plan: Mapping[str, Any], axes: Sequence[str]) -> tuple[Cell, ...]:
    layout, about = plan["layout"], plan["provenance"]
    figures = (value(plan) for _, _, _, value in _FIGURES)
    cells = (layout[axis] for axis in axes)
    return (
        plan["rank"],
        *cells,
        recompute_words(layout),
        *figures,
        plan["fits"],
        about.get("beats_next", ""),
        layout_words(plan),
    )


def time_info(record: Record) -> Stack:
    """Return the best plans' steps by term."""
    plans = record["plans"][:SHOWN]
    largest = max(plans[0]["time"], key=lambda term: plans[0]["time"][term])
    share = plans[0]["time"][largest] / plans[0]["step_s"]
    words = (
        f"The parts of a step sum to it; {TIME_READINGS[largest].title} are {100 * share:.0f} % of"
        " the best plan's. "
    )
    bars = [(short_words(plan), plan) for plan in plans]
    return time_stack(
        bars,
        key="time",
        title="Step time by term",
        sentence=f"{words}Whiskers: 80 % interval of the sum.",
    )


def whole_memory_info(record: Record, *, limit_gib: float | None) -> Stack:
    """Return the best plans' fullest stage by term."""
    bars = [(short_words(plan), plan["memory"]) for plan in record["plans"][:SHOWN]]
    return memory_stack(
        bars,
        key="memory",
        title="Memory of the fullest stage by term",
        sentence="What one process holds at its peak on the fullest stage of each plan.",
        limit_gib=limit_gib,
        over="layout",
    )


def rejected_info(record: Record) -> Grid:
    """Return why layouts were not ranked."""
    rows = tuple((reason, count) for reason, count in record["rejected"].items())
    columns = (
        Column(key="reason", title="reason", wide=True),
        Column(key="layouts", title="layouts", digits=9),
    )
    return Grid(
        key="rejected",
        title="Why layouts were rejected",
        columns=columns,
        rows=rows,
        sentence="Each is counted under its first reason.",
    )


def sources_info(plan: Mapping[str, Any]) -> Grid:
    """Return what a plan's figures stand on, and how far off such figures have been."""
    about = plan["provenance"]
    shares = {name: share for name, share in about.get("shares", {}).items() if share}
    words = {
        "profile": "tables that were measured on your own chip",
        "profile_extrapolated": "those tables, beyond what they hold",
        "tables": "tables that were measured on this chip",
        "kin": "tables of a kindred chip, scaled",
        "formula": "formulas with constants (docs/formulas.md)",
    }
    rows: list[tuple[Cell, ...]] = [
        (f"{100 * share:.0f} % of the step", words[name]) for name, share in shares.items()
    ]
    rows += [("pipeline", about["pipeline"]), ("kernels", about["kernels"])]
    rows += [
        ("step time, against measured runs", about["error"]),
        ("memory, against measured runs", about["memory_error"]),
    ]
    rows += [
        (key, about[key]["words"]) for key in ("profile", "calibration", "close") if about.get(key)
    ]
    columns = (
        Column(key="figure", title="figure"),
        Column(key="stands_on", title="stands on", wide=True),
    )
    return Grid(
        key="sources", title="What these figures stand on", columns=columns, rows=tuple(rows)
    )
