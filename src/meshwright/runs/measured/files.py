"""Whole files of runs: what was measured of each, and what is predicted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from meshwright.runs.counts import least_step_s, too_fast
from meshwright.runs.measured.cells import OtherTable, TruthTable, read_table_file
from meshwright.runs.measured.predict import Answers, predict_rows, reasons
from meshwright.runs.measured.rows import Case, Unanswerable, read_row, read_table
from meshwright.search.link_rates import profiled_pool
from meshwright.trust.calibration import Calibration
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Node, Pool
from meshwright.values.hardware.profile import Profile
from meshwright.values.hardware.profiled import same_chip
from meshwright.values.units import GIB, format_seconds

__all__ = [
    "NOTHING",
    "Counts",
    "MeasuredRun",
    "Own",
    "Runs",
    "Tables",
    "counts",
    "fit_known",
    "least_step_s_of",
    "own_rows",
    "peak_memory_of",
    "predict_tables",
    "profiled_runs",
    "read_tables",
    "runs_of_table",
    "sort_tables",
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
    if run.step_s is not None and (why := too_fast(run.step_s, least_step_s_of(case))) is not None:
        return why
    if (run.step_s, run.peak_bytes, run.fitted) != (None, None, None):
        return run
    return "nothing measured (step_time_s, peak_mem_gib, oom)"


def least_step_s_of(case: Case) -> float:
    """Return the seconds of a run's step at an MFU of 100 %, of chips of one kind."""
    machines, work = case.machines, case.workload
    return least_step_s(
        case.model,
        work,
        gbs=case.layout.gbs,
        num_chips=machines.num_chips,
        peak_flops_per_s=machines.nodes[0].chip.peak_flops_per_s(work.precision),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """What was found in some files."""

    kept: tuple[TruthTable, ...]
    """At least one."""
    left_out: tuple[str, ...]
    """A line for each file that holds something else, with the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How many rows of one table were answered, and why not the others."""

    rows: int
    answered: int
    unanswered: Mapping[str, int]
    """Rows by reason."""
    assumed: Mapping[str, int] = field(default_factory=dict)
    """Answered rows by what had to be taken for granted of them."""


def read_tables(paths: Sequence[Path]) -> Tables:
    """Read the tables of training runs among some files; ConfigError where there is none, or one is
    broken, or two have one name."""
    read = [read_table_file(path) for path in paths]
    kept = tuple(table for table in read if isinstance(table, TruthTable))
    names = Counter(table.name for table in kept)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise ConfigError(
            f"{', '.join(twice)}: two files of this name; predictions are told apart by the file's"
            " name"
        )
    others = (other for other in read if isinstance(other, OtherTable))
    return sort_tables(kept, [(str(other.path), other.reason) for other in others])


def sort_tables(kept: tuple[TruthTable, ...], others: Sequence[tuple[str, str]]) -> Tables:
    """Return what is kept, and what is not as (name, reason); ConfigError where nothing is."""
    if not kept:
        (name, reason), more = others[0], len(others) - 1
        also = f" (and nothing to work on in {more} more)" if more else ""
        raise ConfigError(f"{name}: {reason}{also}")
    left_out = tuple(f"{name}: left out: {reason}" for name, reason in others)
    return Tables(kept=kept, left_out=left_out)


def is_profiled(case: Case | Unanswerable, profile: Profile) -> bool:
    """Whether a row ran on the chip of a profile, and on no other."""
    return (
        isinstance(case, Case)
        and not case.machines.mixed
        and same_chip(profile, case.machines.nodes[0].chip)
    )


def with_profile(
    cases: Iterable[Case | Unanswerable], profile: Profile
) -> list[Case | Unanswerable]:
    """Return the rows, those of the profile's chip with its figures and tables; ConfigError where
    it reaches more than the chip can do."""
    # One object for all rows of a machine, which are then priced together.
    known: dict[Node, Node] = {}
    found: list[Case | Unanswerable] = []
    for case in cases:
        if isinstance(case, Unanswerable) or not is_profiled(case, profile):
            found.append(case)
            continue
        machines, node = case.machines, case.machines.nodes[0]
        if node not in known:
            pool = Pool(node=node, num_chips=machines.num_chips)
            known[node] = profiled_pool(profile, pool).node
        found.append(replace(case, machines=replace(machines, nodes=(known[node],))))
    return found


def profiled_runs(runs: Sequence[MeasuredRun], profile: Profile) -> tuple[MeasuredRun, ...]:
    """Return measured runs as a profile predicts them; ConfigError where one is on another chip."""
    others = sorted(
        {run.case.machines.nodes[0].chip.name for run in runs if not is_profiled(run.case, profile)}
    )
    if others:
        raise ConfigError(
            f"profile of {profile.machine.device_name}, runs on {', '.join(others)}: give the"
            " profile of that chip, or none"
        )
    cases = with_profile((run.case for run in runs), profile)
    return tuple(
        replace(run, case=case)
        for run, case in zip(runs, cases, strict=True)
        if not isinstance(case, Unanswerable)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Own:
    """What the user measured: a calibration of a chip and a stack, a profile of a chip."""

    calibration: Calibration | None = None
    profile: Profile | None = None

    def on(self, cases: Iterable[Case | Unanswerable]) -> list[Case | Unanswerable]:
        """Return the rows, with it where it holds."""
        found = list(cases)
        if self.profile is not None:
            found = with_profile(found, self.profile)
        return [self._calibrated(case) for case in found]

    def _calibrated(self, case: Case | Unanswerable) -> Case | Unanswerable:
        if isinstance(case, Case) and self.calibration is not None and self.is_calibrated(case):
            return replace(case, calibration=self.calibration.for_model(case.model))
        return case

    def is_calibrated(self, case: Case | Unanswerable) -> bool:
        """Whether the calibration is of this row."""
        own = self.calibration
        if own is None or isinstance(case, Unanswerable) or case.machines.mixed:
            return False
        chip = case.machines.nodes[0].chip.name
        return chip == own.chip and own.is_of_stack(case.stack_name)

    def is_profiled(self, case: Case | Unanswerable) -> bool:
        """Whether the profile is of this row."""
        return self.profile is not None and is_profiled(case, self.profile)


NOTHING = Own()


def predict_tables(tables: Sequence[TruthTable], *, own: Own = NOTHING) -> Answers:
    """Predict every row of every table."""
    return predict_rows(case for table in tables for case in own.on(read_table(table)))


def own_rows(tables: Sequence[TruthTable], own: Own) -> tuple[int, int]:
    """Count the rows that the calibration is of, and those that the profile is of."""
    cases = [case for table in tables for case in read_table(table)]
    calibrated = sum(own.is_calibrated(case) for case in cases)
    return calibrated, sum(own.is_profiled(case) for case in cases)


def counts(answers: Answers) -> dict[str, Counts]:
    """Return the counts by table."""
    why = reasons(answers)
    names = {p.source for p in answers.predictions} | set(why)
    found = {}
    for name in sorted(names):
        answered = [p for p in answers.predictions if p.source == name]
        missing = why.get(name, {})
        assumed = Counter(line for p in answered for line in p.case.assumed)
        found[name] = Counts(
            rows=len(answered) + sum(missing.values()),
            answered=len(answered),
            unanswered=missing,
            assumed=dict(assumed.most_common()),
        )
    return found
