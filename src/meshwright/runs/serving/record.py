"""One run of a study of serving: its deployment, its files, and its rows of the results."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from meshwright.runs.loads.figures import Limits, Served, ServedPoint, noise_of
from meshwright.runs.record import Course, event_of
from meshwright.serving.engine import Cache, Weights, Worker
from meshwright.serving.request import Objective
from meshwright.values.errors import ConfigError
from meshwright.values.text import csv_text

__all__ = [
    "FAILED_COLUMNS",
    "RESULT_COLUMNS",
    "Deployment",
    "PredictedPoint",
    "ServedRecord",
    "ServingPrediction",
    "deployment_of",
    "failed_csv",
    "results_csv",
    "served_record_of",
]

DIGITS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """One copy of the model; a cluster holds as many as its chips allow, and each serves as
    much."""

    worker: Worker
    weights: Weights
    cache: Cache

    @property
    def words(self) -> str:
        """`tp=2,weights=bf16,cache=bf16`."""
        return f"{self.worker.name},weights={self.weights},cache={self.cache}"

    @property
    def run_id(self) -> str:
        """`tp2-bf16-bf16-1f3a9c07`, the last part a digest of every field."""
        digest = hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[
            :DIGITS
        ]
        axes = self.worker.name.replace("attention_dp", "adp").replace("=", "").split(",")
        return "-".join([*axes, self.weights, self.cache, digest])

    def to_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {"worker": asdict(self.worker), "weights": self.weights, "cache": self.cache}


def deployment_of(content: Mapping[str, Any]) -> Deployment:
    """Read it back from plain types."""
    worker = Worker(**content["worker"])
    return Deployment(
        worker=worker,
        weights=cast("Weights", content["weights"]),
        cache=cast("Cache", content["cache"]),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedPoint:
    """One load as it was predicted."""

    load: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    tokens_per_s: float
    """New tokens of this copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingPrediction:
    """What was predicted of a deployment when it was chosen."""

    points: tuple[PredictedPoint, ...]
    """Loads that the cache holds; fewer than were asked for where it does not hold the rest."""
    cost_s: float
    """Of the best load: chip-seconds of a new token, or seconds of a request."""
    keeps: bool
    """Whether that load is predicted to keep the limits."""
    memory_bytes: float
    """Of the fullest chip at the largest load."""
    limit_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedRecord(Course):
    """One deployment, from its prediction to what it served."""

    deployment: Deployment
    predicted: ServingPrediction
    objective: Objective
    limits: Limits

    @property
    def served(self) -> Served | None:
        """What was measured; None where it has not ended, or failed before its first point."""
        return self.outcome if isinstance(self.outcome, Served) else None

    @property
    def best_point(self) -> ServedPoint | None:
        """The load that it serves best within the limits."""
        return None if self.served is None else self.served.best(self.objective, self.limits)

    @property
    def cost_s(self) -> float | None:
        """Of its best load; None where no load keeps the limits, or nothing was measured."""
        best, served = self.best_point, self.served
        return None if best is None or served is None else served.cost_s(best, self.objective)

    @property
    def noise(self) -> float:
        """How far another measurement may be off, as the standard deviation of a logarithm."""
        return 0.0 if self.served is None else noise_of(self.served.measured)

    @property
    def ran_out(self) -> bool:
        """Whether memory ran out before or under any load."""
        return self.failure is not None and self.failure.failure_class == "cuda_oom"

    @property
    def num_chips(self) -> int:
        """Chips of the one copy that was run."""
        return self.deployment.worker.chips

    def to_dict(self) -> dict[str, Any]:
        """Return what is known when it is chosen: the content of `run.json`."""
        return {
            "run_id": self.run_id,
            "number": self.number,
            "deployment": self.deployment.to_dict(),
            "predicted": asdict(self.predicted),
            "objective": self.objective,
            "limits": asdict(self.limits),
            "chosen_because": self.chosen_because,
        }


def served_record_of(
    content: Mapping[str, Any], events: Iterable[Mapping[str, Any]], *, source: str
) -> ServedRecord:
    """Read a run back from the content of its two files; ConfigError names the file that is no run
    of serving."""
    try:
        told = content["predicted"]
        points = tuple(PredictedPoint(**point) for point in told["points"])
        record = ServedRecord(
            run_id=content["run_id"],
            number=content["number"],
            deployment=deployment_of(content["deployment"]),
            predicted=ServingPrediction(**{**told, "points": points}),
            objective=content["objective"],
            limits=Limits(**content["limits"]),
            chosen_because=content["chosen_because"],
        )
        for line in events:
            record = record.after(event_of(line))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{source}: no run of a study of serving ({type(error).__name__}: {error})"
        ) from None
    return record


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
