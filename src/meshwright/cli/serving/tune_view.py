"""A study of serving on the terminal: a line for each thing that happens, and a table at the
end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from meshwright.report.serving_table import DEFINITIONS, load_lines
from meshwright.values.units import counted, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshwright.runs.loop import View
    from meshwright.runs.serving.record import ServedRecord
    from meshwright.runs.serving.tune import PreparedServing, ServingStudy
    from meshwright.runs.tune import StudyOptions

__all__ = [
    "dry_lines",
    "end_lines",
    "progress",
]

_EVIDENCE = 160
"""Letters of a line of a log."""


def progress(*, quiet: bool) -> Callable[[View[ServedRecord]], None]:
    """Return what a study's moments are shown to; a quiet one shows nothing."""
    return _show_nothing if quiet else _ServingLines().show


def _show_nothing(view: View[ServedRecord]) -> None:
    pass


class _ServingLines:
    """One line for each change, on stderr."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def show(self, view: View[ServedRecord]) -> None:
        """Say what is new since the last moment."""
        for record in view.records:
            self._say(f"{record.number:3d} {record.run_id}", _happened(record, view))
        if view.stop:
            self._say("", view.stop)

    def _say(self, name: str, words: str) -> None:
        if self._said.get(name) != words:
            self._said[name] = words
            print(f"{time.strftime('%H:%M:%S')} {name} {words}", file=sys.stderr, flush=True)


def _happened(record: ServedRecord, view: View[ServedRecord]) -> str:
    if record.state in ("planned", "submitted"):
        waits = view.waits.get(record.run_id)
        state = "chosen" if record.state == "planned" else f"waits ({waits})" if waits else "runs"
        return f"{state}: {record.chosen_because}"
    if record.failure is not None:
        return (
            f"failed, {record.failure.failure_class}:"
            f" {record.failure.message}{_shown(record.failure.evidence)}"
        )
    best, served = record.best_point, record.served
    assert served is not None
    done = f"{len(served.measured)} of {counted(len(served.points), 'load')} measured"
    if best is None or best.figures is None:
        return f"{done}; none keeps the limits"
    here = " best so far" if view.best is not None and view.best.run_id == record.run_id else ""
    return f"{done}; {best.figures.tokens_per_s / served.chips:.4g} tok/s/GPU at {best.load}{here}"


def _shown(evidence: str | None) -> str:
    return f" ({evidence.strip()[:_EVIDENCE]})" if evidence else ""


def end_lines(found: ServingStudy) -> list[str]:
    """Return the study's end: a line per load that was measured, those that failed with why, and
    the best."""
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
            failure = record.failure
            lines.append(
                f"failed  {record.deployment.words}: {failure.failure_class}:"
                f" {failure.message}{_shown(failure.evidence)}"
            )
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
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        limit = getattr(records[0].limits, name)
        if limit is None:
            continue
        times = [
            (getattr(point.figures, name).mean, record, point)
            for record in records
            if record.served
            for point in record.served.measured
        ]
        value, record, point = min(times, key=lambda row: float(row[0]))
        words = (
            f"{name[:-2].upper()} {1e3 * value:.4g} ms of {1e3 * limit:.4g} by"
            f" {record.deployment.words} at {point.load}"
        )
        found.append(words)
    return "; ".join(found)


def dry_lines(prepared: PreparedServing, tuning: StudyOptions) -> list[str]:
    """Return what would be run, best predicted first, and the first job as it would be sent."""
    from meshwright.runs.serving.tune import first_serving_job

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
