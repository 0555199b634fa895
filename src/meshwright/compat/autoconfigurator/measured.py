"""The inference part measured: each TP and PP size as a server, by the runs of `serving tune`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.cluster import Platform
from meshwright.compat.autoconfigurator.folders import write_job
from meshwright.compat.autoconfigurator.inference import InferenceSearch, Point, Refused, sorted_out
from meshwright.runs.limits import StudyLimits
from meshwright.runs.loads.figures import ServedPoint
from meshwright.runs.loads.load import Lengths, closed_loop
from meshwright.runs.loop import View
from meshwright.runs.serving.record import ServedRecord
from meshwright.runs.serving.trial import OWN_ENGINE
from meshwright.runs.serving.tune import (
    PreparedServing,
    ServingStudy,
    first_serving_job,
    prepare_serving_study,
    serving_place,
    tune_serving,
)
from meshwright.runs.tune import StudyOptions
from meshwright.serving.engine import Worker
from meshwright.values.errors import MissingExtraError

__all__ = ["MeasuredInference", "measured_points", "prepare_inference"]

_LOAD = "concurrency={batch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredInference:
    """A grid that can be measured, before its first run."""

    search: InferenceSearch
    prepared: PreparedServing
    tuning: StudyOptions
    platform: Platform

    @property
    def num_runs(self) -> int:
        """Servers that are started: one for each tensor and pipeline size that can be."""
        return len(self.prepared.candidates.members)

    @property
    def chip(self) -> str:
        """What is measured, which on this machine need not be what predictions are of."""
        return self.prepared.request.cluster.pools[0].node.chip.name

    def write_first_job(self) -> tuple[Path, str]:
        """Write the first job with the files that it reads; return its own and its command."""
        _, _, text, job = first_serving_job(self.prepared, self.tuning)
        return write_job(self.search.folder, text, files=job.files), text.submit

    def run(self, show: Callable[[View[ServedRecord]], None]) -> ServingStudy:
        """Measure, or go on with it; what `tune_serving` raises."""
        return tune_serving(self.prepared, self.tuning, starter=self.platform.executor(), show=show)


def prepare_inference(
    search: InferenceSearch, platform: Platform, *, chip: str | None
) -> MeasuredInference:
    """Prepare a study of the whole grid; ConfigError says why nothing of it can be measured.

    `chip` is the one that was named; on this machine None takes what is here.
    """
    if platform.is_local and search.engine == OWN_ENGINE and find_spec("transformers") is None:
        raise MissingExtraError("transformers", "serve")
    here = platform.is_local and chip is None
    place = serving_place(
        "local" if here else f"{search.chip}:{search.gpus_per_node}",
        folder=search.study,
        gpus_per_node=None if here else search.gpus_per_node,
    )
    lengths = Lengths(input_len=search.input_len, output_len=search.output_len)
    pairs = dict.fromkeys((tp, pp) for tp, pp, _ in search.grid)
    prepared = prepare_serving_study(
        search.model,
        place,
        engine=search.engine,
        loads=[closed_loop(n, lengths) for n in sorted({batch for _, _, batch in search.grid})],
        weights=(search.data_type,),
        workers=[Worker(tp=tp, pp=pp) for tp, pp in pairs],
        model_path=search.model_path,
    )
    limits = StudyLimits(
        max_runs=len(prepared.candidates.members) + 1,  # the grid ends first
        parallel=platform.parallel,
        minutes_per_run=search.minutes_per_run,
        strategy="grid",
    )
    image = search.container
    job = platform.job if image is None else replace(platform.job, image=image)
    tuning = StudyOptions(folder=search.study, limits=limits, launcher=platform.launcher, job=job)
    return MeasuredInference(search=search, prepared=prepared, tuning=tuning, platform=platform)


def measured_points(
    measured: MeasuredInference, records: Sequence[ServedRecord]
) -> tuple[list[Point], list[Refused]]:
    """Return the points that were measured, and why each of the others was not."""
    found = {}
    for record in records:
        worker = record.deployment.worker
        found[worker.tp, worker.pp] = record
    why = measured.prepared.candidates.refused
    refused = {(worker.tp, worker.pp): reason for worker, reason in why.items()}
    grid = measured.search.grid
    return sorted_out(_one(found.get(at[:2]), refused.get(at[:2]), at) for at in grid)


def _one(
    record: ServedRecord | None, rule: str | None, at: tuple[int, int, int]
) -> Point | Refused:
    known: dict[str, Any] = dict(zip(("tp", "pp", "batch"), at, strict=True))
    refused: Callable[..., Refused] = partial(Refused, **known)
    if record is None:
        kind = "never_started" if rule is None else "rule"
        return refused(kind=kind, reason=rule or "the study ended before its run")
    if (failure := record.failure) is not None:
        return refused(
            kind=failure.failure_class, reason=failure.message, evidence=failure.evidence
        )
    load = _LOAD.format(batch=at[2])
    points = record.served.points if record.served else ()
    point = next((point for point in points if point.load == load), None)
    if point is None:
        return refused(kind="never_started", reason="the run ended before this load")
    if point.error is not None or point.figures is None:
        return refused(kind="load", reason=point.error or "no figures", evidence=point.evidence)
    return _measured(record, point, known)


def _measured(record: ServedRecord, point: ServedPoint, at: Mapping[str, Any]) -> Point:
    figures = point.figures
    assert figures is not None, "a point without figures is a failed one"
    predicted = next((one for one in record.predicted.points if one.load == point.load), None)
    tpot_ms = figures.tpot_s.mean * 1e3
    return Point(
        **at,
        latency_ms=figures.e2e_s.mean * 1e3,
        samples_per_s_per_gpu=figures.requests_per_s / record.num_chips,
        first_token_ms=figures.ttft_s.mean * 1e3,
        tpot_ms=None if math.isnan(tpot_ms) else tpot_ms,
        predicted_ms=None if predicted is None else predicted.e2e_s * 1e3,
    )
