"""One run of the user's own: what it was, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.rows import Case, Unanswerable, read_row
from meshwright.runs.measured.score import fit_known, peak_memory_of, step_time_of
from meshwright.values.units import GIB, format_seconds

__all__ = [
    "MeasuredRun",
    "Runs",
    "runs_of_table",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """A run that finished, or ran out of memory."""

    case: Case
    step_s: float | None = None
    """Seconds per optimizer step, warm-up left out."""
    peak_bytes: float | None = None
    """The figure that `case.memory` names."""
    fitted: bool | None = None
    """False where it ran out of memory; None where nobody says."""

    def words(self) -> str:
        """Say in one line what it was and what was measured."""
        case = self.case
        measured = [
            *([format_seconds(self.step_s)] if self.step_s is not None else []),
            *([f"{self.peak_bytes / GIB:.1f} GiB"] if self.peak_bytes is not None else []),
            *(["out of memory"] if self.fitted is False else []),
        ]
        run = f"{case.source}{f' {case.row_id}' if case.row_id else ''}"
        return (
            f"{run}: {case.model.name}, {case.machines.num_chips} chips, {case.layout.words()}:"
            f" {', '.join(measured)}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """What was found in a file: runs, and a line for each that can't be used."""

    runs: tuple[MeasuredRun, ...]
    left_out: tuple[str, ...] = ()


def runs_of_table(table: TruthTable, *, stack: str | None = None) -> Runs:
    """Return the measured runs of a table in the schema of `predict`; `stack` takes the place of
    what the rows' software suggests."""
    runs: list[MeasuredRun] = []
    left_out: list[str] = []
    for row in table.rows:
        found = _measured(table.name, row)
        if isinstance(found, MeasuredRun):
            runs.append(
                found
                if stack is None
                else replace(found, case=replace(found.case, stack_name=stack))
            )
        else:
            left_out.append(f"{table.name} {row.get('row_id', '')}: {found}")
    return Runs(runs=tuple(runs), left_out=tuple(left_out))


def _measured(source: str, row: Mapping[str, str]) -> MeasuredRun | str:
    """The run of a row, or why there is none."""
    case = read_row(row, source=source)
    if isinstance(case, Unanswerable):
        return case.reason
    if case.machines.mixed:
        return "several kinds of chips; calibrate takes one kind"
    peak = peak_memory_of(row)
    run = MeasuredRun(
        case=case,
        step_s=_step_s(source, row, case),
        peak_bytes=None if peak is None else peak * GIB,
        fitted=fit_known(row),
    )
    return (
        run
        if (run.step_s, run.peak_bytes, run.fitted) != (None, None, None)
        else "nothing measured (step_time_s, peak_mem_gib, oom)"
    )


def _step_s(source: str, row: Mapping[str, str], case: Case) -> float | None:
    """The step time, or what follows from the throughput where only that is given."""
    if row.get("step_time_s"):
        return step_time_of(source, row)
    try:
        rate = float(row.get("tokens_per_s_per_gpu") or "nan")
    except ValueError:
        return None
    if not 0 < rate < float("inf") or row.get("oom") == "1":
        return None
    derived = case.layout.gbs * case.workload.seq_len / (rate * case.machines.num_chips)
    return step_time_of(source, {**row, "step_time_s": repr(derived)})
