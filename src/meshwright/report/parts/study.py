"""What a report says of a study: `tune --json`, or its directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.report.charts.forms import Axis, Cell, Grid, Group, Guide, Point, Points, table_of
from meshwright.report.charts.svg import BEST, OTHER, SEQUENCE, number
from meshwright.report.parts.part import (
    Part,
    Record,
    Tile,
    Words,
    layout_of,
    sections_of,
    short_words,
    tiles_of,
)
from meshwright.values.units import GIB, counted

__all__ = [
    "history_info",
    "predicted_info",
    "regret_info",
    "runs_info",
    "study_answer_info",
    "study_part",
    "study_tiles_info",
]


NEAR_PERCENT = 2.0
"""Within which a layout counts as found, as in `tune --replay`."""


def study_part(record: Record, name: str, resolve: object) -> Part:
    """Return what was measured, how far off predictions were, and why each run was chosen."""
    measured = _measured(record)
    found = (regret_info(record), history_info(record)) if measured else ()
    charts = (predicted_info(record),) if measured else ()
    nothing = Words(
        lines=("No run has finished yet; the table has what was chosen and what failed.",)
    )
    return Part(
        kind="study",
        title=_title(record),
        answer=study_answer_info(record),
        tiles=study_tiles_info(record),
        sections=sections_of(
            ("history", "How it was found", found or (nothing,)),
            ("predicted", "Predicted against measured", charts),
            ("runs", "Runs", (runs_info(record),)),
        ),
    )


def _title(record: Record) -> str:
    facts, request = record.get("facts"), record.get("request", {})
    if facts:
        return f"{facts['model']} on {facts['num_chips']} x {facts['chip']}"
    model = request.get("model", "")
    return (
        f"{model if isinstance(model, str) else model.get('name', 'custom model')} on"
        f" {request.get('cluster', '?')}"
    )


def _measured(record: Record) -> list[Mapping[str, Any]]:
    return [run for run in record["runs"] if run.get("measured")]


def _fastest(record: Record) -> Mapping[str, Any] | None:
    return min(_measured(record), key=lambda run: float(run["measured"]["step_s"]), default=None)


def study_answer_info(record: Record) -> str:
    """Say what was fastest, by how much predictions were off, and why the study ended."""
    measured, best = _measured(record), _fastest(record)
    failed = sum(bool(run.get("failure")) for run in record["runs"])
    counted = f"{len(measured)} measured, {failed} failed"
    if best is None:
        return f"{_title(record)}: no run has finished ({counted})."
    took, predicted = best["measured"]["step_s"], best["predicted"]["step_s"]
    stop = f" It stopped: {record['stop']}." if record.get("stop") else ""
    words = layout_of(best["layout"]).words().replace(",", ", ")
    return (
        f"{_title(record)}: the fastest of {counted} is {words}, {number(took)} s a step,"
        f" x{took / predicted:.2f} of its prediction, {number(best['measured']['tokens_per_s'])}"
        f" tokens/s.{stop}"
    )


def study_tiles_info(record: Record) -> tuple[Tile, ...]:
    """Return the best run's figures and the study's cost."""
    best, measured = _fastest(record), _measured(record)
    spent = Tile(
        title="Spent",
        value=f"{number(record['gpu_hours'])} GPU-hours",
        note=counted(len(record["runs"]), "run"),
    )
    if best is None:
        return (spent,)
    inside = sum(_is_inside(run) for run in measured)
    low, high = best["measured"]["step_low_s"], best["measured"]["step_high_s"]
    return (
        *tiles_of(
            (
                "Step time",
                f"{number(best['measured']['step_s'])} s",
                f"steps from {number(low)} to {number(high)} s",
            ),
            (
                "Against prediction",
                f"x{best['measured']['step_s'] / best['predicted']['step_s']:.2f}",
                "of the best run",
            ),
            ("Inside 80 % interval", f"{inside} of {len(measured)}", "measured runs"),
        ),
        spent,
    )


def _is_inside(run: Mapping[str, Any]) -> bool:
    low, high = run["predicted"]["step_interval_s"]
    return bool(low <= run["measured"]["step_s"] <= high)


def regret_info(record: Record) -> Points:
    """Return, by run, how much longer a step of the best so far takes than that of the fastest run
    of all, and how much longer each run's own."""
    measured = _measured(record)
    fastest = min(float(run["measured"]["step_s"]) for run in measured)

    def over(step_s: float) -> float:
        return 100 * (step_s / fastest - 1)

    best_s, path = float("inf"), []
    for run in measured:
        best_s = min(best_s, float(run["measured"]["step_s"]))
        path.append(Point(x=run["number"], y=over(best_s), label=f"best after run {run['number']}"))
    last = max(run["number"] for run in record["runs"])
    path.append(Point(x=last, y=0.0, label=f"best after run {last}"))
    within = next(point for point in path if point.y <= NEAR_PERCENT)
    own = tuple(
        Point(
            x=run["number"],
            y=over(run["measured"]["step_s"]),
            label=f"run {run['number']}: {short_words(run)}",
            detail=str(run["chosen_because"]),
            named=run["measured"]["step_s"] == fastest,
        )
        for run in measured
    )
    return Points(
        key="regret",
        title="Regret by run",
        sentence=(
            f"After run {within.x:.0f} of {len(record['runs'])} the best is within"
            f" {NEAR_PERCENT:.0f} % of the fastest that the study measured."
        ),
        x=Axis(key="run", title="run", whole=True),
        y=Axis(key="regret_percent", title="longer than the fastest, %", from_zero=True),
        groups=(
            Group(
                title="best so far", colour=BEST, points=tuple(path), mark="none", joined="steps"
            ),
            Group(title="a run", colour=SEQUENCE[0], points=own),
        ),
        guides=(
            Guide(
                title=f"within {NEAR_PERCENT:.0f} %",
                points=((own[0].x, NEAR_PERCENT), (last, NEAR_PERCENT)),
            ),
        )
        if last > own[0].x
        else (),
    )


def history_info(record: Record) -> Points:
    """Return the best so far by run, with every run and why it was chosen."""
    best_s, path = float("inf"), []
    for run in record["runs"]:
        if run.get("measured"):
            best_s = min(best_s, run["measured"]["step_s"])
        if best_s < float("inf"):
            path.append(Point(x=run["number"], y=best_s, label=f"best after run {run['number']}"))
    measured = tuple(_run_point(run, run["measured"]["step_s"]) for run in _measured(record))
    failed = tuple(
        _run_point(run, run["predicted"]["step_s"]) for run in record["runs"] if run.get("failure")
    )
    groups = (
        Group(title="best so far", colour=BEST, points=tuple(path), mark="none", joined="steps"),
        Group(title="measured", colour=SEQUENCE[0], points=measured),
        Group(title="failed, where it was predicted", colour=OTHER, points=failed, mark="cross"),
    )
    fastest = _fastest(record)
    found = 0 if fastest is None else fastest["number"]
    return Points(
        key="history",
        title="Best so far by run",
        sentence=(
            f"The fastest was run {found} of {len(record['runs'])}; a point says why it was chosen."
        ),
        x=Axis(key="run", title="run", whole=True),
        y=Axis(key="step_s", title="step, s", from_zero=True),
        groups=groups,
    )


def _run_point(run: Mapping[str, Any], step_s: float) -> Point:
    failure = run.get("failure")
    why = f"failed: {failure['failure_class']}; " if failure else ""
    return Point(
        x=run["number"],
        y=step_s,
        label=f"run {run['number']}: {short_words(run)}",
        detail=f"{why}{run['chosen_because']}",
    )


def predicted_info(record: Record) -> Points:
    """Return predictions with their intervals over what was measured."""
    measured = _measured(record)
    points = tuple(_predicted_point(run) for run in measured)
    ends = [
        value
        for run in measured
        for value in (run["measured"]["step_s"], run["predicted"]["step_s"])
    ]
    line = ((min(ends), min(ends)), (max(ends), max(ends)))
    off = sorted(
        abs(run["predicted"]["step_s"] / run["measured"]["step_s"] - 1) for run in measured
    )
    middle = (off[len(off) // 2] + off[(len(off) - 1) // 2]) / 2
    inside = sum(_is_inside(run) for run in measured)
    return Points(
        key="predicted",
        title="Predicted against measured step time",
        sentence=(
            f"Median error {100 * middle:.1f} %; {inside} of {len(measured)} lie inside their 80 %"
            " interval."
        ),
        x=Axis(key="measured_s", title="measured, s", log=True),
        y=Axis(key="predicted_s", title="predicted, s", log=True),
        groups=(Group(title="run, with its 80 % interval", colour=SEQUENCE[0], points=points),),
        guides=(Guide(title="as predicted", points=line),) if line[0] != line[1] else (),
    )


def _predicted_point(run: Mapping[str, Any]) -> Point:
    low, high = run["predicted"]["step_interval_s"]
    label = f"run {run['number']}: {short_words(run)}"
    return Point(
        x=run["measured"]["step_s"], y=run["predicted"]["step_s"], low=low, high=high, label=label
    )


def _of_measured(run: Mapping[str, Any], key: str) -> Cell:
    found: Cell = (run.get("measured") or {}).get(key)
    return found


def _off(run: Mapping[str, Any]) -> float:
    """How much longer than predicted a run took, as a ratio."""
    return float(run["measured"]["step_s"] / run["predicted"]["step_s"])


def _reserved_gib(run: Mapping[str, Any]) -> float | None:
    reserved = (run.get("measured") or {}).get("peak_reserved_bytes")
    return None if reserved is None else reserved / GIB


def _failed(run: Mapping[str, Any]) -> str:
    failure = run.get("failure")
    if not failure:
        return str(run["state"])
    evidence = failure.get("evidence") or ""
    return f"{failure['failure_class']}: {failure['message']} {evidence}".strip()


_RUN_COLUMNS: tuple[tuple[Any, ...], ...] = (
    ("number", "run", 6, "number"),
    ("layout", "layout", "wide", short_words),
    ("state", "state", "hidden", "state"),
    ("predicted_s", "predicted, s", 4, lambda run: run["predicted"]["step_s"]),
    ("low", "low", "hidden 3", lambda run: run["predicted"]["step_interval_s"][0]),
    ("high", "high", "hidden 3", lambda run: run["predicted"]["step_interval_s"][1]),
    ("measured_s", "measured, s", 4, lambda run: _of_measured(run, "step_s")),
    ("off", "measured / predicted", 3, lambda run: _off(run) if run.get("measured") else None),
    ("tokens_per_s", "tokens/s", 4, lambda run: _of_measured(run, "tokens_per_s")),
    (
        "predicted_gib",
        "predicted, GiB",
        "hidden 3",
        lambda run: run["predicted"]["peak_bytes"] / GIB,
    ),
    ("reserved_gib", "reserved, GiB", 3, _reserved_gib),
    ("why", "chosen because", "wide", "chosen_because"),
    ("failure", "how it ended", "wide", _failed),
)


def runs_info(record: Record) -> Grid:
    """Return every run in the order in which they were chosen."""
    best, runs = _fastest(record), record["runs"]
    return table_of(
        runs,
        *_RUN_COLUMNS,
        key="runs",
        title="Every run, in the order of choice",
        marked=None if best is None else [run["run_id"] for run in runs].index(best["run_id"]),
    )
