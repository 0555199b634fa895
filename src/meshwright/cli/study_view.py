"""Studies on the terminal: what happens as it happens, and what was measured at the end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Generic

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.cli.terminal import INTERRUPTED, print_page, tell
from meshwright.report.columns import Column, print_columns
from meshwright.report.serving_table import DEFINITIONS, load_lines
from meshwright.runs.loads.figures import limited_times
from meshwright.runs.loop import View
from meshwright.runs.outcome import (
    Failure,
)
from meshwright.runs.record import AnyRun, RunRecord, first_id
from meshwright.runs.serving.record import ServedRecord
from meshwright.runs.serving.tune import (
    PreparedServing,
    ServingStudy,
    first_serving_job,
)
from meshwright.runs.tune import Interrupted, StudyOptions
from meshwright.values.units import counted, format_seconds

__all__ = [
    "dry_lines",
    "end_lines",
    "interruptible",
    "print_result",
    "progress",
    "serving_progress",
]


_SHOWN_RUNS = 15
_EVIDENCE = 160
"""Letters of a line of a log."""


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[View], None]]:
    """Give what a study's moments are shown to; a quiet one shows nothing."""
    if quiet:
        yield lambda view: None
        return
    if not sys.stderr.isatty():
        yield _Lines(_happened).show
        return
    from rich.live import Live

    console = Console(stderr=True, markup=False, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda view: live.update(_table(view), refresh=True)


class _Lines(Generic[AnyRun]):
    """One line on stderr for each change."""

    def __init__(self, happened: Callable[[AnyRun, View[AnyRun]], str]) -> None:
        self._said: dict[str, str] = {}
        self._happened = happened

    def show(self, view: View[AnyRun]) -> None:
        """Say what is new since the last moment."""
        for record in view.records:
            self._say(f"{record.number:3d} {record.run_id} ", self._happened(record, view))
        if view.stop:
            self._say("", view.stop)

    def _say(self, name: str, words: str) -> None:
        if self._said.get(name) != words:
            self._said[name] = words
            print(f"{time.strftime('%H:%M:%S')} {name}{words}", file=sys.stderr, flush=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """End the command where a study is interrupted, saying how it goes on."""
    try:
        yield
    except Interrupted as error:
        tell(str(error))
        raise typer.Exit(INTERRUPTED) from None


def _waiting(record: AnyRun, view: View[AnyRun]) -> str:
    """Whether a run that has not ended was chosen, waits or runs."""
    waits = view.waits.get(record.run_id)
    return "chosen" if record.state == "planned" else f"waits ({waits})" if waits else "runs"


def _best_mark(record: AnyRun, view: View[AnyRun]) -> str:
    return " best so far" if view.best is not None and view.best.run_id == record.run_id else ""


def _happened(record: RunRecord, view: View) -> str:
    if record.state in ("planned", "submitted"):
        predicted = format_seconds(record.predicted.step_s)
        return f"{_waiting(record, view)}: predicted {predicted}; {record.chosen_because}"
    if record.measured is not None:
        off = record.measured.step_s / record.predicted.step_s
        return (
            f"took {format_seconds(record.measured.step_s)} a step, x{off:.2f} of the"
            f" prediction{_best_mark(record, view)}"
        )
    return f"failed, {_why(record.failure)}"


def _table(view: View) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for heading in ("#", "run", "predicted", "measured", "state"):
        table.add_column(heading, overflow="fold")
    for record in _by_interest(view)[:_SHOWN_RUNS]:
        measured = "" if record.measured is None else format_seconds(record.measured.step_s)
        table.add_row(
            str(record.number),
            record.run_id,
            format_seconds(record.predicted.step_s),
            measured,
            _state(record, view),
        )
    lines = ["", *_standing(view)]
    if view.last_choice:
        lines.append(f"chosen last  {view.last_choice}")
    if view.stop:
        lines.append(f"stops        {view.stop}")
    return Group(table, Text("\n".join(lines)))


def _standing(view: View) -> Iterator[str]:
    """Yield how the study stands: what is best, what was learnt, and what is left to gain."""
    best = view.best
    if best is None or best.measured is None:
        yield "best         none yet"
    else:
        yield f"best         {best.run_id}, {format_seconds(best.measured.step_s)} a step"
    ratios = sorted(
        record.measured.step_s / record.predicted.step_s
        for record in view.records
        if record.measured is not None
    )
    if ratios:
        spread = "" if len(ratios) == 1 else f" (x{ratios[0]:.2f} to x{ratios[-1]:.2f})"
        yield f"learnt       steps take x{median(ratios):.2f} of what was predicted{spread}"
    failed = Counter(
        record.failure.failure_class for record in view.records if record.failure is not None
    )
    if failed:
        words = ", ".join(f"{counted(number, 'run')} {kind}" for kind, number in failed.items())
        yield f"failed       {words}"
    if view.left_to_gain is not None and not view.stop:
        yield f"left to gain {view.left_to_gain:.1%}, by which the best is expected to be too slow"
    yield f"spent        {view.gpu_hours:.3g} GPU-hours"


def _by_interest(view: View) -> list[RunRecord]:
    """What runs, then what finished, the fastest first, then what failed."""
    order = {"submitted": 0, "planned": 1, "finished": 2, "failed": 3}
    return sorted(
        view.records,
        key=lambda r: (order[r.state], r.measured.step_s if r.measured else 0.0, r.number),
    )


def _state(record: RunRecord, view: View) -> str:
    if record.failure is not None:
        return f"failed: {record.failure.failure_class}"
    if record.state == "submitted":
        if record.run_id in view.waits:
            return f"waits: {view.waits[record.run_id]}"
        since = record.submitted_s
        spent = "" if since is None else f", {format_seconds(max(0.0, time.time() - since))}"
        return f"runs{spent}"
    return "best" if view.best is not None and view.best.run_id == record.run_id else record.state


def print_result(view: View) -> None:
    """Print the study's end: finished runs, the fastest first, then those that failed, with why."""
    finished = [record for record in _by_interest(view) if record.measured is not None]
    if finished:
        columns = [
            Column(heading=heading, justify="left")
            for heading in ("", "run", "step", "predicted", "off", "tokens/s")
        ]
        columns.append(Column(heading="layout", justify="left", spare=1, under=True))
        if view.chances:
            columns.insert(-1, Column(heading="P(best)", justify="left"))
        rows = [_row(place, record, view) for place, record in enumerate(finished, start=1)]
        print_columns(Console(), columns, rows, more="results.csv has them")
    failed = [
        f"failed  {record.run_id}: {_why(record.failure)}"
        for record in view.records
        if record.failure is not None
    ]
    if failed:
        print_page(failed, indent=8)


def _why(failure: Failure | None) -> str:
    """The class of a failure, its sentence, and the line that says so."""
    assert failure is not None
    return f"{failure.failure_class}: {failure.message}{_shown(failure.evidence)}"


def _row(place: int, record: RunRecord, view: View) -> tuple[str, ...]:
    measured = record.measured
    assert measured is not None
    off = f"x{measured.step_s / record.predicted.step_s:.2f}"
    times = (format_seconds(measured.step_s), format_seconds(record.predicted.step_s))
    chance = [f"{view.chances[first_id(record.run_id)]:.0%}"] if view.chances else []
    return (
        str(place),
        record.run_id,
        *times,
        off,
        f"{measured.tokens_per_s:.0f}",
        *chance,
        record.layout.words(),
    )


def serving_progress(*, quiet: bool) -> Callable[[View[ServedRecord]], None]:
    """Return what a study's moments are shown to; a quiet one shows nothing."""
    return _Lines(_served_happened).show if not quiet else lambda view: None


def _served_happened(record: ServedRecord, view: View[ServedRecord]) -> str:
    if record.state in ("planned", "submitted"):
        return f"{_waiting(record, view)}: {record.chosen_because}"
    if record.failure is not None:
        return f"failed, {_why(record.failure)}"
    best, served = record.best_point, record.served
    assert served is not None
    done = f"{len(served.measured)} of {counted(len(served.points), 'load')} measured"
    if best is None or best.figures is None:
        return f"{done}; none keeps the limits"
    rate = best.figures.tokens_per_s / served.chips
    return f"{done}; {rate:.4g} tok/s/GPU at {best.load}{_best_mark(record, view)}"


def _shown(evidence: str | None) -> str:
    return f" ({evidence.strip()[:_EVIDENCE]})" if evidence else ""


def end_lines(found: ServingStudy) -> list[str]:
    """Return the study's end: a line per measured load, failures with why, and the best."""
    rows = [
        ((record.deployment.words, point.load, _off(record, point.load)), point.figures)
        for record in found.view.records
        if record.served is not None
        for point in record.served.measured
        if point.figures is not None
    ]
    lines = [*load_lines(rows, names=("deployment", "load", "predicted")), ""] if rows else []
    for record in found.view.records:
        if record.failure is not None:
            lines.append(f"failed  {record.deployment.words}: {_why(record.failure)}")
        for point in record.served.points if record.served else ():
            if point.error is not None:
                lines.append(
                    f"failed  {record.deployment.words} {point.load}:"
                    f" {point.error}{_shown(point.evidence)}"
                )
    lines += [
        f"note: {note}"
        for note in dict.fromkeys(
            n for record in found.view.records if record.served for n in record.served.notes
        )
    ]
    lines += [
        f"stopped: {found.view.stop}; {found.view.gpu_hours:.3g} GPU-hours",
        *_best_lines(found),
    ]
    return (
        [*lines, "", "predicted: new tokens a second, predicted over measured", DEFINITIONS]
        if rows
        else lines
    )


def _off(record: ServedRecord, load: str) -> str:
    predicted = next(
        (point.tokens_per_s for point in record.predicted.points if point.load == load), None
    )
    measured = (
        next(point.figures for point in record.served.measured if point.load == load)
        if record.served
        else None
    )
    return (
        "-"
        if predicted is None or measured is None
        else f"x{predicted / measured.tokens_per_s:.2f}"
    )


def _best_lines(found: ServingStudy) -> list[str]:
    best = found.view.best
    if best is not None and best.best_point is not None:
        return [
            f"best: {best.deployment.words} at {best.best_point.load}; {found.folder / 'best.yaml'}"
            f" and {found.folder / 'best'} hold it"
        ]
    records = [
        record
        for record in found.view.records
        if record.served is not None and record.served.measured
    ]
    if not records:
        return ["nothing was measured; each failure is above, and its output in the run's folder"]
    return [f"no load kept the limits; nearest: {_nearest(records)}"]


def _nearest(records: list[ServedRecord]) -> str:
    """On each limited axis the best that was measured."""
    found: list[str] = []
    for name, limit in asdict(records[0].limits).items():
        if limit is None:
            continue
        times = [
            (limited_times(point.figures)[name], record, point)
            for record in records
            if record.served
            for point in record.served.measured
            if point.figures is not None
        ]
        value, record, point = min(times, key=lambda row: float(row[0]))
        what = name.removesuffix("_s").replace("_p99", " p99").upper()
        words = (
            f"{what} {1e3 * value:.4g} ms of {1e3 * limit:.4g} by"
            f" {record.deployment.words} at {point.load}"
        )
        found.append(words)
    return "; ".join(found)


def dry_lines(prepared: PreparedServing, tuning: StudyOptions) -> list[str]:
    """Return what would be run, best predicted first, and the first job as it would be sent."""
    lines = []
    for member in prepared.candidates.members[: tuning.limits.max_runs]:
        best = min(
            member.predicted.points,
            key=lambda point: point.e2e_s / point.tokens_per_s,
            default=None,
        )
        words = (
            "holds no request"
            if best is None
            else f"{best.tokens_per_s:8.4g} tok/s, e2e {format_seconds(best.e2e_s)} at {best.load}"
        )
        lines.append(
            f"{member.deployment.words:40}"
            f" {words}{'' if member.predicted.keeps else '  (beyond the limits)'}"
        )
    candidate, because, text, job = first_serving_job(prepared, tuning)
    lines += [
        "",
        f"first: {candidate.deployment.words} ({because})",
        f"==> {text.file_name}",
        text.text,
    ]
    lines += [line for file in job.files for line in (f"==> {file.name}", file.text)]
    return [*lines, f"it would be sent by: {text.submit}"]
