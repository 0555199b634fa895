"""What became of a run of serving: by its launcher's word, the lines that it printed for programs,
and its logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from meshwright.loads.figures import Figures
from meshwright.loads.job import MARK, Line, line_of
from meshwright.runs.classify import classify
from meshwright.runs.evidence import Evidence
from meshwright.runs.executors import JobStatus
from meshwright.runs.failures import Failure, FailureClass
from meshwright.runs.outcome import read_run_logs
from meshwright.runs.record import Outcome
from meshwright.runs.served import Served, ServedPoint
from meshwright.runs.store import RUN_LOGS

__all__ = ["judge_serving", "outcome_of_lines"]


def judge_serving(
    chips_of: Callable[[str], int],
) -> Callable[[JobStatus, Path, float | None], Outcome | None]:
    """Return what reads the folder of a run; `chips_of` gives the chips of a run by its id, which
    is its folder's name."""

    def judge(status: JobStatus, folder: Path, silent_s: float | None) -> Outcome | None:
        if not status.ended and silent_s is None:
            return None
        lines = [line for path in (folder / name for name in RUN_LOGS) for line in _lines(path)]
        logs = read_run_logs([folder / name for name in RUN_LOGS])
        evidence = [
            found for found in logs.evidence if MARK not in found.line
        ]  # what we wrote of it ourselves is no cause
        failure = classify(status, evidence=evidence, silent_s=silent_s)
        if not status.ended and failure is None:
            return None
        return outcome_of_lines(
            lines, failure=failure, evidence=evidence, chips=chips_of(folder.name)
        )

    return judge


def outcome_of_lines(
    lines: Sequence[Line], *, failure: Failure | None, evidence: Sequence[Evidence], chips: int
) -> Served | Failure:
    """Return the points of a run that measured any, else why it failed.

    A point that failed gets the line of the engine's log that names the cause, where there is one:
    what the engine said last is often an echo of it.
    """
    cause = next((found for found in evidence if found.tier in ("cause", "exception")), None)
    points = [_point(line.content, cause) for line in lines if line.kind == "point"]
    ready = next((line.content for line in lines if line.kind == "ready"), None)
    if ready is not None and any(point.error is None for point in points):
        notes = tuple(str(note) for note in ready["notes"])
        return Served(
            points=tuple(points), ready_s=float(ready["ready_s"]), chips=chips, notes=notes
        )
    if cause is not None and cause.failure_class != "unknown":
        return Failure(
            failure_class=cause.failure_class, message=cause.message, evidence=cause.line
        )
    told = next((line.content for line in lines if line.kind == "failed"), None)
    if told is not None:
        word = cast("FailureClass", told["failure_class"])
        line = cause.line if cause is not None else cast("str | None", told["evidence"])
        return Failure(failure_class=word, message=str(told["message"]), evidence=line)
    if points:
        return Failure(
            failure_class="unknown", message=str(points[0].error), evidence=points[0].evidence
        )
    return failure or Failure(
        failure_class="unknown", message="it ended without a word of what was measured"
    )


def _point(content: Mapping[str, Any], cause: Evidence | None) -> ServedPoint:
    figures = None if content["figures"] is None else Figures.of(content["figures"])
    point = ServedPoint(
        load=str(content["name"]),
        figures=figures,
        error=content["error"],
        evidence=content["evidence"],
    )
    return (
        replace(point, evidence=cause.line)
        if point.error is not None and cause is not None
        else point
    )


def _lines(path: Path) -> Iterator[Line]:
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            for text in stream:
                line = line_of(text)
                if line is not None:
                    yield line
    except OSError:
        return
