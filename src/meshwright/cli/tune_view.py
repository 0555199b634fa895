"""A study on the terminal: a live table, or a line for each thing that happens where nobody looks
at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.cli.terminal import print_page
from meshwright.report.columns import Column, print_columns
from meshwright.runs.loop import View
from meshwright.runs.record import RunRecord
from meshwright.values.units import format_seconds

__all__ = ["print_result", "progress"]

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
        yield _Lines().show
        return
    from rich.live import Live

    console = Console(stderr=True, markup=False, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda view: live.update(_table(view), refresh=True)


class _Lines:
    """One line for each change."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def show(self, view: View) -> None:
        """Say what is new since the last moment."""
        for record in view.records:
            if self._said.get(record.run_id) != (words := _happened(record, view)):
                self._said[record.run_id] = words
                print(
                    f"{time.strftime('%H:%M:%S')} {record.number:3d} {record.run_id} {words}",
                    file=sys.stderr,
                    flush=True,
                )
        if view.stop and self._said.get("") != view.stop:
            self._said[""] = view.stop
            print(f"{time.strftime('%H:%M:%S')} {view.stop}", file=sys.stderr, flush=True)


def _happened(record: RunRecord, view: View) -> str:
    if record.state in ("planned", "submitted"):
        waits = view.waits.get(record.run_id)
        state = "chosen" if record.state == "planned" else f"waits ({waits})" if waits else "runs"
        return (
            f"{state}: predicted {format_seconds(record.predicted.step_s)}; {record.chosen_because}"
        )
    if record.measured is not None:
        off = record.measured.step_s / record.predicted.step_s
        best = " best so far" if view.best is not None and view.best.run_id == record.run_id else ""
        return (
            f"took {format_seconds(record.measured.step_s)} a step, x{off:.2f} of the"
            f" prediction{best}"
        )
    return f"failed, {_why(record)}"


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
    lines = [
        f"best: {view.best.run_id}" if view.best else "best: none yet",
        f"{view.gpu_hours:.3g} GPU-hours spent",
    ]
    if view.last_choice:
        lines.append(f"chosen last: {view.last_choice}")
    if view.stop:
        lines.append(view.stop)
    return Group(table, Text("\n".join(lines)))


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
        return f"waits: {view.waits[record.run_id]}" if record.run_id in view.waits else "runs"
    return "best" if view.best is not None and view.best.run_id == record.run_id else record.state


def print_result(view: View) -> None:
    """Print the study's end: runs that finished, the fastest first, then those that failed, with
    why."""
    finished = [record for record in _by_interest(view) if record.measured is not None]
    if finished:
        columns = [
            Column(heading=heading, justify="left")
            for heading in ("", "run", "step", "predicted", "off", "tokens/s")
        ]
        columns.append(Column(heading="layout", justify="left", spare=1, under=True))
        rows = [_row(place, record) for place, record in enumerate(finished, start=1)]
        print_columns(Console(), columns, rows, more="results.csv has them")
    failed = [
        f"failed  {record.run_id}: {_why(record)}"
        for record in view.records
        if record.failure is not None
    ]
    if failed:
        print_page(failed, indent=8)


def _why(record: RunRecord) -> str:
    """The class of a failure, its sentence, and the line that says so."""
    failure = record.failure
    assert failure is not None
    evidence = f" ({failure.evidence.strip()[:_EVIDENCE]})" if failure.evidence else ""
    return f"{failure.failure_class}: {failure.message}{evidence}"


def _row(place: int, record: RunRecord) -> tuple[str, ...]:
    measured = record.measured
    assert measured is not None
    off = f"x{measured.step_s / record.predicted.step_s:.2f}"
    times = (format_seconds(measured.step_s), format_seconds(record.predicted.step_s))
    return (
        str(place),
        record.run_id,
        *times,
        off,
        f"{measured.tokens_per_s:.0f}",
        record.layout.words(),
    )
