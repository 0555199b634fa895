"""One run of a study of serving: its deployment, its files, and its rows of the results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, ClassVar

from meshwright.runs.loads.figures import Limits, Served, ServedPoint, noise_of
from meshwright.runs.record import Course, Parts, named_by, of_plain, read_run, told_fields
from meshwright.runs.results import Cell, Columns, table
from meshwright.serving.engine import Cache, Weights, Worker
from meshwright.serving.request import Objective
from meshwright.serving.settings import AS_IT_IS, SETTINGS, Settings, said_setting

__all__ = [
    "FAILED_COLUMNS",
    "RESULT_COLUMNS",
    "Deployment",
    "PredictedPoint",
    "ServedRecord",
    "ServingPrediction",
    "failed_csv",
    "results_csv",
    "served_record_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """One copy of the model; a cluster holds as many as it has chips for, all alike."""

    worker: Worker
    weights: Weights
    cache: Cache
    settings: Settings = AS_IT_IS

    @property
    def words(self) -> str:
        """`tp=2,weights=bf16,cache=bf16`, then settings that are not the engine's own."""
        told = f",{self.settings.words}" if self.settings.told else ""
        return f"{self.worker.name},weights={self.weights},cache={self.cache}{told}"

    @property
    def run_id(self) -> str:
        """`tp2-bf16-bf16-graphsoff-1f3a9c07`, the last part a digest of every field."""
        axes = self.worker.name.replace("attention_dp", "adp").replace("=", "").split(",")
        first = ("worker", "weights", "cache")
        told = told_fields(self, always=first, usual={"settings": asdict(AS_IT_IS)})
        words = self.settings.words.replace("=", "").split(",") if self.settings.told else []
        return named_by([*axes, self.weights, self.cache, *words], told)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedPoint:
    """One load as it was predicted."""

    load: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    tokens_per_s: float
    """New tokens of this copy."""
    ttft_p99_s: float | None = None
    """Of the simulator, where there is a limit on one of these; None where there is none."""
    tpot_p99_s: float | None = None
    e2e_p99_s: float | None = None

    @property
    def times(self) -> dict[str, float]:
        """What limits are held against, by the limit's name; NaN where nobody knows it."""
        told = (field.name for field in fields(self) if field.name.endswith("_s"))
        found = {name: getattr(self, name) for name in told if name != "tokens_per_s"}
        return {name: math.nan if time is None else time for name, time in found.items()}


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

    TOLD: ClassVar[tuple[str, ...]] = (
        *("run_id", "number", "deployment", "predicted"),
        *("objective", "limits", "chosen_because"),
    )
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
    def num_chips(self) -> int:
        """Chips of the one copy that was run."""
        return self.deployment.worker.chips


def served_record_of(
    content: Mapping[str, Any], events: Iterable[Mapping[str, Any]], *, source: str
) -> ServedRecord:
    """Read a run back from the content of its files; ConfigError names a wrong one."""
    what = f"{source}: no run of a study of serving"
    return read_run(ServedRecord, _PARTS, content, events, what=what)


def _predicted_of(content: Mapping[str, Any]) -> ServingPrediction:
    points = tuple(PredictedPoint(**point) for point in content["points"])
    return ServingPrediction(**{**content, "points": points})


def _deployment_of(content: Mapping[str, Any]) -> Deployment:
    settings = Settings(**content.get("settings", {}))
    return Deployment(**{**content, "worker": Worker(**content["worker"]), "settings": settings})


_PARTS: Parts = {
    "deployment": _deployment_of,
    "predicted": _predicted_of,
    "limits": partial(of_plain, Limits),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """One load of one run, or a run that failed as a whole."""

    record: ServedRecord
    load: str
    point: ServedPoint | None = None
    why: tuple[str, str, str | None] = ("", "", None)
    """Of what failed: class, message, evidence."""

    def predicted(self, name: str) -> float | None:
        points = self.record.predicted.points
        found = next((point for point in points if point.load == self.load), None)
        return None if found is None else float(getattr(found, name))

    def measured(self, name: str, part: str = "mean") -> float | None:
        if self.point is None or self.point.figures is None:
            return None
        value = getattr(self.point.figures, name)
        number = float(getattr(value, part) if hasattr(value, part) else value)
        return None if math.isnan(number) else number

    @property
    def tokens_per_s_per_gpu(self) -> float:
        return (self.measured("tokens_per_s") or math.nan) / self.record.num_chips

    @property
    def off(self) -> float | None:
        """Predicted over measured, less 1."""
        predicted, measured = self.predicted("tokens_per_s"), self.measured("tokens_per_s")
        return None if predicted is None or not measured else predicted / measured - 1

    @property
    def kept(self) -> str:
        return "yes" if self.point is not None and self.point.kept(self.record.limits) else "no"


def _axis(name: str) -> Any:
    return lambda row: getattr(row.record.deployment.worker, name)


def _setting(name: str) -> Any:
    """`on`, `off`, a size; blank where it is the engine's own."""
    return lambda row: said_setting(getattr(row.record.deployment.settings, name))


def _time(name: str, part: str = "mean") -> Any:
    return lambda row: _ms(row.measured(f"{name}_s", part))


def _predicted_time(name: str) -> Any:
    return lambda row: _ms(row.predicted(f"{name}_s"))


def _count(name: str) -> Any:
    return lambda row: round(row.measured(name))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


_TIMES = ("ttft", "tpot", "itl", "e2e")
_SETTINGS: Columns[_Row] = {
    "run_id": lambda row: row.record.run_id,
    "number": lambda row: row.record.number,
    **{name: _axis(name) for name in ("tp", "pp", "ep", "attention_dp")},
    "weights": lambda row: row.record.deployment.weights,
    "cache": lambda row: row.record.deployment.cache,
    **{name: _setting(name) for name in SETTINGS},
    "gpus": lambda row: row.record.num_chips,
    "load": lambda row: row.load,
}
_RESULT: Columns[_Row] = {
    **_SETTINGS,
    "tokens_per_s": lambda row: row.measured("tokens_per_s"),
    "tokens_per_s_per_gpu": lambda row: row.tokens_per_s_per_gpu,
    "requests_per_s": lambda row: row.measured("requests_per_s"),
    "good_per_s": lambda row: row.point.figures.good_per_s,  # type: ignore[union-attr]  # it was measured
    **{f"{name}_ms": _time(name) for name in _TIMES},
    **{f"{name}_{part}_ms": _time(name, part) for name in _TIMES for part in ("p50", "p90", "p99")},
    "requests": _count("requests"),
    "output_tokens": _count("output_tokens"),
    "keeps_limits": lambda row: row.kept,
    "predicted_tokens_per_s": lambda row: row.predicted("tokens_per_s"),
    **{f"predicted_{name}_ms": _predicted_time(name) for name in ("ttft", "tpot", "e2e")},
    "predicted_off": lambda row: row.off,
    "ready_s": lambda row: row.record.served.ready_s,  # type: ignore[union-attr]  # as above
}
_FAILED: Columns[_Row] = {
    **_SETTINGS,
    "failure_class": lambda row: row.why[0],
    "message": lambda row: row.why[1],
    "evidence": lambda row: row.why[2],
}
RESULT_COLUMNS = tuple(_RESULT)
"""Headings of `results.csv`."""
FAILED_COLUMNS = tuple(_FAILED)
"""Headings of `failed.csv`."""


def results_csv(records: Sequence[ServedRecord]) -> str:
    """Every load that was measured, most tokens a second and GPU first."""
    rows = [
        _Row(record=record, load=point.load, point=point)
        for record in records
        if record.served
        for point in record.served.measured
    ]
    fastest = sorted(
        rows, key=lambda row: -(row.measured("tokens_per_s") or 0.0) / row.record.num_chips
    )
    return table(_RESULT, fastest, cell=_known)


def failed_csv(records: Sequence[ServedRecord]) -> str:
    """Every run that failed as a whole, and every load that failed of those that did not."""
    return table(_FAILED, (row for record in records for row in _failures(record)), cell=_known)


def _failures(record: ServedRecord) -> Iterator[_Row]:
    if (one := record.failure) is not None:
        yield _Row(record=record, load="", why=(one.failure_class, one.message, one.evidence))
    for point in record.served.points if record.served else ():
        if point.error is not None:
            yield _Row(record=record, load=point.load, why=("load", point.error, point.evidence))


def _known(value: Cell) -> Cell:
    """What is no number is blank."""
    return None if isinstance(value, float) and math.isnan(value) else value
