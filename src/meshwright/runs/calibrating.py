"""Runs of a study as measurements for a calibration: what each was stands in its record, not in its
log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshwright.runs.candidates import forecast_of
from meshwright.runs.measured.measured_run import MeasuredRun, Runs
from meshwright.runs.record import RunRecord
from meshwright.runs.store import Store
from meshwright.search.problem import Problem
from meshwright.software.described import MemoryFigure

__all__ = ["is_study", "runs_of_study"]


def is_study(folder: Path) -> bool:
    """Whether a folder is a study of `meshwright tune`, with at least one run."""
    return next(iter(folder.glob("runs/*/run.json")), None) is not None


def runs_of_study(store: Store, problem: Problem, *, stack: str | None = None) -> Runs:
    """Return the runs that were measured, and as bounds those that ran out of accelerator memory.

    `problem` is the study's own, without profile and calibration; `stack` takes the place of the
    software that it was predicted with. Of every other run a line says why it is left out.
    """
    runs: list[MeasuredRun] = []
    left_out: list[str] = []
    for record in store.records():
        found = _run(record, problem, source=store.folder.name, stack=stack)
        if isinstance(found, MeasuredRun):
            runs.append(found)
        else:
            left_out.append(f"{store.folder.name} {record.run_id}: {found}")
    return Runs(runs=tuple(runs), left_out=tuple(left_out))


def _run(
    record: RunRecord, problem: Problem, *, source: str, stack: str | None
) -> MeasuredRun | str:
    case = replace(forecast_of(problem, record.layout, record.predicted).case, source=source)
    if stack is not None:
        case = replace(case, stack_name=stack)
    if record.failure is not None and record.failure.failure_class == "cuda_oom":
        return MeasuredRun(case=case, fitted=False)
    if record.failure is not None:
        return f"{record.failure.failure_class}, {record.failure.message}"
    measured = record.measured
    if measured is None:
        return "it has not ended"
    allocated, reserved = measured.peak_allocated_bytes, measured.peak_reserved_bytes
    figure = MemoryFigure(kind="allocated" if allocated is not None else "reserved", rank="max")
    peak = allocated if allocated is not None else reserved
    return MeasuredRun(
        case=replace(case, memory=figure), step_s=measured.step_s, peak_bytes=peak, fitted=True
    )
