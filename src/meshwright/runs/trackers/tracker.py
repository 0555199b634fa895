"""What trackers have in common: a run that ended goes in, once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol

from meshwright.errors import MissingExtraError
from meshwright.logs import Report
from meshwright.runs.record import RunRecord, StudyFacts
from meshwright.runs.tables import StudyTables

__all__ = ["Tracker", "curves", "figures", "need", "run_name", "track"]


class Tracker(Protocol):
    """Shows runs that ended."""

    name: str

    def add(self, record: RunRecord, tables: StudyTables, reports: Sequence[Report]) -> None:
        """Show a run with its steps; one that is there already, from a tuner that was killed, is
        not shown twice."""


def track(
    trackers: Sequence[Tracker], record: RunRecord, tables: StudyTables, reports: Sequence[Report]
) -> tuple[str, ...]:
    """Give a run to every tracker; return a line for each that could not take it, for no tracker
    may stop a study."""
    lines = []
    for tracker in trackers:
        try:
            tracker.add(record, tables, reports)
        except (
            Exception
        ) as error:  # a network, a server, a library of others: whatever goes wrong there
            lines.append(
                f"{tracker.name}: {record.run_id} is not shown ({type(error).__name__}:"
                f" {str(error).partition(chr(10))[0]})"
            )
    return tuple(lines)


def need(module: str, extra: str) -> None:
    """Raise MissingExtraError where a library is absent, without loading it."""
    try:
        found = find_spec(module)
    except ValueError:  # it is set to None in sys.modules
        found = None
    if found is None:
        raise MissingExtraError(module, extra)


def run_name(record: RunRecord, facts: StudyFacts) -> str:
    """Name a run by model and layout: `llama3-8b-tp2-pp2-dp4-mbs1-none-1f3a9c`; it serves as the
    name of a folder."""
    return re.sub(r"[^\w.-]+", "-", f"{facts.model}-{record.run_id}")


def curves(reports: Sequence[Report]) -> list[tuple[int, dict[str, float]]]:
    """Return what reports say by step, in rising order; of a step that was done twice the later
    holds."""
    by_step: dict[int, dict[str, float]] = {}
    for number, report in enumerate(reports, start=1):
        told = {
            "step_s": report.step_s,
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "tokens_per_s": report.tokens_per_s,
            "tokens_per_s_per_gpu": report.tokens_per_s_per_gpu,
            "tflops_per_gpu": report.tflops_per_gpu,
        }
        by_step[report.step or number] = {
            name: value for name, value in told.items() if value is not None
        }
    return sorted(by_step.items())


def figures(row: Mapping[str, str | int | float | None]) -> dict[str, float]:
    """Return the finite numbers of a row."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
