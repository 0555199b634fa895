"""What a study of serving found: `results.csv` has a row for each load of each deployment,
`failed.csv` those that failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.runs.serving.record import ServedRecord
from meshwright.values.text import csv_text

__all__ = ["FAILED_COLUMNS", "RESULT_COLUMNS", "failed_csv", "results_csv"]

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One load of one run."""

    record: ServedRecord
    load: str

    def predicted(self, name: str) -> float | None:
        found = next(
            (point for point in self.record.predicted.points if point.load == self.load), None
        )
        return None if found is None else float(getattr(found, name))

    def measured(self, name: str, part: str = "mean") -> float | None:
        served = self.record.served
        found = (
            next((point for point in served.points if point.load == self.load), None)
            if served
            else None
        )
        if found is None or found.figures is None:
            return None
        value = getattr(found.figures, name)
        number = float(getattr(value, part) if hasattr(value, part) else value)
        return None if math.isnan(number) else number

    def counted(self, name: str) -> int | None:
        found = self.measured(name)
        return None if found is None else round(found)

    @property
    def kept(self) -> str:
        served = self.record.served
        point = (
            next(point for point in served.points if point.load == self.load) if served else None
        )
        return "yes" if point is not None and point.kept(self.record.limits) else "no"


def _off(row: _Row, name: str) -> float | None:
    """Predicted over measured, less 1."""
    predicted, measured = row.predicted(name), row.measured(name)
    return None if predicted is None or not measured else predicted / measured - 1


def _good(row: _Row) -> float | None:
    served = row.record.served
    point = (
        next((point for point in served.points if point.load == row.load), None) if served else None
    )
    return None if point is None or point.figures is None else point.figures.good_per_s


_SETTINGS: Mapping[str, Callable[[_Row], Cell]] = {
    "run_id": lambda row: row.record.run_id,
    "number": lambda row: row.record.number,
    "tp": lambda row: row.record.deployment.worker.tp,
    "pp": lambda row: row.record.deployment.worker.pp,
    "ep": lambda row: row.record.deployment.worker.ep,
    "attention_dp": lambda row: row.record.deployment.worker.attention_dp,
    "weights": lambda row: row.record.deployment.weights,
    "cache": lambda row: row.record.deployment.cache,
    "gpus": lambda row: row.record.num_chips,
    "load": lambda row: row.load,
}
_RESULT: Mapping[str, Callable[[_Row], Cell]] = {
    **_SETTINGS,
    "tokens_per_s": lambda row: row.measured("tokens_per_s"),
    "tokens_per_s_per_gpu": lambda row: (
        (row.measured("tokens_per_s") or math.nan) / row.record.num_chips
    ),
    "requests_per_s": lambda row: row.measured("requests_per_s"),
    "good_per_s": _good,
    **{
        f"{name}_ms": lambda row, name=name: _ms(row.measured(f"{name}_s"))  # type: ignore[misc]
        for name in ("ttft", "tpot", "itl", "e2e")
    },
    **{
        f"{name}_{part}_ms": lambda row, name=name, part=part: _ms(row.measured(f"{name}_s", part))  # type: ignore[misc]
        for name in ("ttft", "tpot", "itl", "e2e")
        for part in ("p50", "p90", "p99")
    },
    "requests": lambda row: row.counted("requests"),
    "output_tokens": lambda row: row.counted("output_tokens"),
    "keeps_limits": lambda row: row.kept,
    "predicted_tokens_per_s": lambda row: row.predicted("tokens_per_s"),
    **{
        f"predicted_{name}_ms": lambda row, name=name: _ms(row.predicted(f"{name}_s"))  # type: ignore[misc]
        for name in ("ttft", "tpot", "e2e")
    },
    "predicted_off": lambda row: _off(row, "tokens_per_s"),
    "ready_s": lambda row: None if row.record.served is None else row.record.served.ready_s,
}
_FAILED: Mapping[str, Callable[[tuple[_Row, str, str, str | None]], Cell]] = {
    **{name: lambda found, cell=cell: cell(found[0]) for name, cell in _SETTINGS.items()},  # type: ignore[misc]
    "failure_class": lambda found: found[1],
    "message": lambda found: found[2],
    "evidence": lambda found: found[3],
}
RESULT_COLUMNS = tuple(_RESULT)
"""Headings of `results.csv`."""
FAILED_COLUMNS = tuple(_FAILED)
"""Headings of `failed.csv`."""


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def results_csv(records: Sequence[ServedRecord]) -> str:
    """Every load that was measured, most tokens a second and GPU first."""
    rows = [
        _Row(record=record, load=point.load)
        for record in records
        if record.served
        for point in record.served.measured
    ]
    ordered = sorted(
        rows, key=lambda row: -(row.measured("tokens_per_s") or 0.0) / row.record.num_chips
    )
    return csv_text(
        RESULT_COLUMNS, [[_cell(cell(row)) for cell in _RESULT.values()] for row in ordered]
    )


def failed_csv(records: Sequence[ServedRecord]) -> str:
    """Every run that failed as a whole, and every load that failed of those that did not."""
    return csv_text(
        FAILED_COLUMNS,
        [
            [_cell(cell(found)) for cell in _FAILED.values()]
            for record in records
            for found in _failures(record)
        ],
    )


def _failures(record: ServedRecord) -> Iterator[tuple[_Row, str, str, str | None]]:
    if record.failure is not None:
        yield (
            _Row(record=record, load=""),
            record.failure.failure_class,
            record.failure.message,
            record.failure.evidence,
        )
    for point in record.served.points if record.served else ():
        if point.error is not None:
            yield _Row(record=record, load=point.load), "load", point.error, point.evidence


def _cell(value: Cell) -> Cell:
    """What is no number is blank."""
    return None if isinstance(value, float) and math.isnan(value) else value
