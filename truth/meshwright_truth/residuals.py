"""How far each prediction of a published run was off, with the kind of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.files import fit_known, peak_memory_of, step_time_of
from meshwright.runs.measured.predict import Answers, Prediction, predict_rows
from meshwright.runs.measured.rows import Case, Unanswerable
from meshwright.trust.intervals import Kind, Quantity, ServingQuantity
from meshwright.values.stack import find_stack
from meshwright.values.units import GIB
from meshwright_truth.score import comparison_of

__all__ = [
    "LEAST_SHARE",
    "Feature",
    "FitOutcome",
    "Read",
    "Residual",
    "fit_outcomes",
    "residuals_of",
    "unknown_software",
]

LEAST_SHARE = 0.1
"""Share of a chip's memory that a run must be predicted to use for its memory to say something of
runs that fill a chip: below it, buffers and contexts that every run has outweigh what is
predicted."""


Feature = Literal["fp8", "cp", "ep", "lora", "long"]
"""What a run may have that none before had."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """One published run of one quantity."""

    quantity: Quantity | ServingQuantity
    table: str
    model: str
    """As the row names it."""
    run: str
    """Rows that agree in it are repeats of one run."""
    kind: Kind
    log_ratio: float
    """ln(measured / predicted)."""
    as_family: float | None = None
    """The same where the software is not known, so that its family's figures hold; None: alike."""
    features: frozenset[Feature] = frozenset()

    @property
    def unknown(self) -> float:
        """ln(measured / predicted) where nothing is known of the software."""
        return self.log_ratio if self.as_family is None else self.as_family


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


def residuals_of(
    read: Read, answers: Answers, *, as_family: Answers | None = None
) -> list[Residual]:
    """Return the residuals of every answered row with a measured time or memory that can be
    compared; `as_family` are the answers of `unknown_software`."""
    others = {(p.source, p.row_id): p for p in as_family.predictions} if as_family else {}
    found = []
    for row, case, prediction in _answered(read, answers):
        kind, run, features = case.kind, _run(case), _features(prediction.case)
        other = others.get((case.source, case.row_id), prediction)
        generic = dict(_ratios(row, case, other))
        for quantity, ratio in _ratios(row, case, prediction):
            residual = Residual(
                quantity=quantity,
                table=case.source,
                model=row["model"],
                run=run,
                kind=kind.of(quantity),
                log_ratio=math.log(ratio),
                as_family=math.log(generic[quantity]) if quantity in generic else None,
                features=features,
            )
            found.append(residual)
    return found


def unknown_software(read: Read) -> Answers:
    """Predict every row as if nothing were known of its software but its family: whatever was
    learnt of it was learnt from these rows."""
    cases = (
        replace(case, stack_name=find_stack(case.stack_name).family)
        for _, cases in read
        for case in cases
        if isinstance(case, Case)
    )
    return predict_rows(cases)


def _features(case: Case) -> frozenset[Feature]:
    layout, work = case.layout, case.workload
    has: Mapping[Feature, bool] = {
        "fp8": work.precision not in ("fp32", "tf32", "bf16", "fp16"),
        "cp": layout.cp > 1,
        "ep": layout.ep > 1,
        "lora": case.kind.work == "lora",
        "long": case.kind.work == "long",
    }
    return frozenset(name for name, there in has.items() if there)


def fit_outcomes(read: Read, answers: Answers) -> list[FitOutcome]:
    """Return every answered row that is known to fit or not."""
    return [
        FitOutcome(
            table=case.source,
            kind=case.kind,
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


def _run(case: Case) -> str:
    """Everything of a run but the release of its software."""
    return repr((case.machines.pools, case.layout, case.workload, case.stack_changes, case.memory))
