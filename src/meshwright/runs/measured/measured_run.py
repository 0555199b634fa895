"""One run of the user's own: what it was, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.rows import Case, Unanswerable, read_row
from meshwright.values.units import GIB, format_seconds

__all__ = [
    "MeasuredRun",
    "Runs",
    "fit_known",
    "peak_memory_of",
    "runs_of_table",
    "step_time_of",
]

_DOUBTFUL = ("BEFORE", "SUSPECT", "TRAP:", "outlier")
"""Words in the notes of a run whose time is known to be wrong."""
_MEMORY_ONLY_TABLE = "megatron_functional"
_MEMORY_ONLY_SOURCE = "mindspeed-llm-ci"


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
        measured = [] if self.step_s is None else [format_seconds(self.step_s)]
        measured += [] if self.peak_bytes is None else [f"{self.peak_bytes / GIB:.1f} GiB"]
        measured += ["out of memory"] if self.fitted is False else []
        run = f"{case.source} {case.row_id}" if case.row_id else case.source
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
            name = stack or found.case.stack_name
            runs.append(replace(found, case=replace(found.case, stack_name=name)))
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
    if (run.step_s, run.peak_bytes, run.fitted) != (None, None, None):
        return run
    return "nothing measured (step_time_s, peak_mem_gib, oom)"


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


def step_time_of(table: str, row: Mapping[str, str]) -> float | None:
    """Return the measured seconds of a row that can be compared, else None."""
    return float(row["step_time_s"]) if _time_counts(table, row) else None


def peak_memory_of(row: Mapping[str, str]) -> float | None:
    """Return the measured GiB of a row that can be compared, else None."""
    measured = _number(_cell(row, "peak_mem_gib"))
    return measured if measured > 0 and "SUSPECT" not in _cell(row, "notes") else None


def fit_known(row: Mapping[str, str]) -> bool | None:
    """Return whether a run fitted, None where its row does not tell."""
    if _cell(row, "oom") not in ("0", "1") or not _given(row, "tp", "pp", "gbs"):
        return None
    return _cell(row, "oom") == "0"


def _time_counts(table: str, row: Mapping[str, str]) -> bool:
    """Whether the step time is sound, of a full-size run, and its layout published."""
    if table == _MEMORY_ONLY_TABLE or _cell(row, "source") == _MEMORY_ONLY_SOURCE:
        return False
    if any(word in _cell(row, "notes") for word in _DOUBTFUL):
        return False
    if not _given(row, "tp", "pp", "gbs", "num_gpus"):
        return False
    return _cell(row, "oom") != "1" and _number(_cell(row, "step_time_s")) > 0


def _given(row: Mapping[str, str], *columns: str) -> bool:
    return all(_cell(row, column) for column in columns)


def _cell(row: Mapping[str, str], column: str) -> str:
    return row.get(column) or ""


def _number(text: str) -> float:
    """A finite number, or 0 for anything else."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
