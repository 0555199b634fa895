"""How far each prediction of a published run was off, with the kind of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.accuracy.predict import Answers, Prediction
from meshwright.accuracy.rows import Case, Unanswerable
from meshwright.accuracy.score import comparison_of, fit_known, peak_memory_of, step_time_of
from meshwright.accuracy.tables import TruthTable
from meshwright.confidence import Kind, Quantity, kind_of
from meshwright.stack import find_stack
from meshwright.units import GIB

__all__ = ["LEAST_SHARE", "FitOutcome", "Read", "Residual", "fit_outcomes", "residuals_of"]

LEAST_SHARE = 0.1
"""Share of a chip's memory that a run must be predicted to use for its memory to say something of
runs that fill a chip: below it, buffers and contexts that every run has outweigh what is
predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """One published run of one quantity."""

    quantity: Quantity
    table: str
    model: str
    """As the row names it."""
    run: str
    """Rows that agree in it are repeats of one run."""
    kind: Kind
    log_ratio: float
    """ln(measured / predicted)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitOutcome:
    """A published run that is known to fit or not."""

    table: str
    kind: Kind
    used_bytes: float
    """Predicted."""
    limit_bytes: float
    fitted: bool
    compared: tuple[str, ...] = ()
    """Runs that agree in it differ in layout alone."""
    predicted_s: float = math.inf
    measured_s: float | None = None
    """None where it ran out of memory, or its time is doubtful."""


Read = Sequence[tuple[TruthTable, Sequence[Case | Unanswerable]]]
"""Tables with a case per row."""


def residuals_of(read: Read, answers: Answers) -> list[Residual]:
    """Return the residuals of every answered row with a measured time or memory that can be
    compared."""
    found = []
    for row, case, prediction in _answered(read, answers):
        kind, run = _kind(case), _run(case)
        for quantity, ratio in _ratios(row, case, prediction):
            residual = Residual(
                quantity=quantity,
                table=case.source,
                model=row["model"],
                run=run,
                kind=kind.of(quantity),
                log_ratio=math.log(ratio),
            )
            found.append(residual)
    return found


def fit_outcomes(read: Read, answers: Answers) -> list[FitOutcome]:
    """Return every answered row that is known to fit or not."""
    return [
        FitOutcome(
            table=case.source,
            kind=_kind(case),
            used_bytes=found.used_bytes,
            limit_bytes=_usable(case),
            fitted=fitted,
            compared=comparison_of(row),
            predicted_s=found.step_s,
            measured_s=step_time_of(case.source, row),
        )
        for row, case, found in _answered(read, answers)
        if (fitted := fit_known(row)) is not None
    ]


def _answered(read: Read, answers: Answers) -> Iterable[tuple[Mapping[str, str], Case, Prediction]]:
    made = {(p.source, p.row_id): p for p in answers.predictions}
    for table, cases in read:
        for row, case in zip(table.rows, cases, strict=True):
            prediction = made.get((case.source, case.row_id))
            if isinstance(case, Case) and prediction is not None:
                yield row, case, prediction


def _ratios(
    row: Mapping[str, str], case: Case, found: Prediction
) -> Iterable[tuple[Quantity, float]]:
    """Measured over predicted."""
    step_s, peak_gib = step_time_of(case.source, row), peak_memory_of(row)
    if step_s is not None:
        yield "step_time", step_s / found.step_s
    if peak_gib is not None and found.peak_memory_bytes >= LEAST_SHARE * _usable(case):
        yield "peak_memory", peak_gib * GIB / found.peak_memory_bytes


def _usable(case: Case) -> float:
    return case.machines.nodes[0].chip.usable_bytes


def _kind(case: Case) -> Kind:
    chip = case.machines.nodes[0].chip
    kind = kind_of(model=case.model, chip=chip, stack=find_stack(case.stack_name))
    return replace(kind, generation="mixed") if case.machines.mixed else kind


def _run(case: Case) -> str:
    """Everything of a run but the release of its software."""
    return repr((case.machines.pools, case.layout, case.workload, case.stack_changes, case.memory))
