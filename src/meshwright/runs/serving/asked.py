"""From a question to a study of serving: where engines run, and what may be run there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from meshwright.hardware.cluster import Cluster
from meshwright.hardware.parse import parse_count
from meshwright.hardware.profile import Profile
from meshwright.loads.figures import Limits
from meshwright.loads.load import Load
from meshwright.local import LOCAL, cluster_from_flag, find_local_cluster
from meshwright.models.by_hand import named_model
from meshwright.models.spec import ModelSpec
from meshwright.runs.loop import StudyLimits
from meshwright.runs.processors import probed_processors
from meshwright.runs.serving.candidates import Pins
from meshwright.runs.serving.trial import OWN_ENGINE, ServingTrial
from meshwright.runs.serving.tune import (
    PreparedServing,
    ServingStudy,
    ServingTuning,
    prepare_serving,
    tune_serving,
)
from meshwright.runs.tune import kept_machine
from meshwright.search.profiled import local_pool
from meshwright.serving.deployment import Worker
from meshwright.serving.engine import find_engine
from meshwright.serving.request import Objective, ServingRequest

__all__ = ["Place", "prepare_serving_study", "serving_place", "tune"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where engines run."""

    word: str
    """As it was asked for: h100:8, local."""
    cluster: Cluster
    machine: Profile | None = None
    """Of processors: what they were probed to do."""

    @property
    def on_cores(self) -> bool:
        """Whether engines run on processors."""
        return self.cluster.pools[0].node.chip.generation == "cpu"


def serving_place(cluster: str, *, folder: Path, gpus_per_node: int | None = None) -> Place:
    """Return the chips of a cluster's name; `local` without a GPU is the processor's cores, as they
    were probed when the study began."""
    word, colon, count = cluster.strip().lower().partition(":")
    if word != LOCAL or (not colon and find_local_cluster() is not None):
        return Place(word=cluster, cluster=cluster_from_flag(cluster, gpus_per_node=gpus_per_node))
    cores = parse_count(count, kind=LOCAL) if colon else None
    machine = kept_machine(folder) or probed_processors(cores=cores)
    return Place(word=cluster, cluster=Cluster(pools=(local_pool(machine),)), machine=machine)


def prepare_serving_study(
    model: ModelSpec,
    place: Place,
    *,
    engine: str,
    loads: Sequence[Load],
    limits: Limits | None = None,
    objective: Objective = "throughput",
    weights: Sequence[str] | None = None,
    cache: Sequence[str] | None = None,
    pins: Pins | None = None,
    workers: Sequence[Worker] | None = None,
    model_path: str | None = None,
    port: int | None = None,
    ready_s: float = 900.0,
    patience_s: float = 600.0,
    extra: tuple[str, ...] = (),
) -> PreparedServing:
    """Return a study before its first run; ConfigError where nothing can be run, or something asked
    for has no effect.

    The lengths that deployments are predicted for are the loads' means. `weights` are 16 bits, on
    processors fp32, unless others are named, and the cache is of the same type. `workers` are
    exactly those that may be run; None: what the search finds, with the pins' sizes.
    """
    asks = [ask for load in loads for ask in load.asks]
    kept = limits or Limits()
    types = tuple(weights or (("fp32",) if place.on_cores else ("bf16",)))
    request = ServingRequest(
        model=model,
        cluster=place.cluster,
        engine=find_engine(engine),
        input_len=round(sum(ask.input_len for ask in asks) / len(asks)),
        output_len=round(sum(ask.output_len for ask in asks) / len(asks)),
        ttft_s=kept.ttft_s,
        tpot_s=kept.tpot_s,
        e2e_s=kept.e2e_s,
        objective=objective,
        modes=("aggregated",),
        weights=cast("Any", types),
        cache=(
            cast("Any", tuple(cache))
            if cache
            else cast("Any", types)
            if all(word in _HALVES for word in types)
            else None
        ),
    )
    trial = ServingTrial(
        loads=tuple(loads),
        limits=kept,
        objective=objective,
        model_path=model_path,
        port=port,
        ready_s=ready_s,
        patience_s=patience_s,
        extra=extra,
    )
    asked = {
        "model": asdict(model),
        "cluster": place.word,
        "engine": request.engine.name,
        "weights": list(types),
        "cache": list(cache or ()),
        "input_len": request.input_len,
        "output_len": request.output_len,
    }
    return prepare_serving(
        request, trial, asked=asked, pins=pins or {}, workers=workers, machine=place.machine
    )


_HALVES = ("fp32", "bf16", "fp16")


def tune(
    model: ModelSpec | str,
    cluster: str,
    *,
    loads: Sequence[Load],
    folder: Path | str,
    engine: str = OWN_ENGINE,
    launcher: str = "local",
    study: StudyLimits | None = None,
    **asked: Any,
) -> ServingStudy:
    """Run a study of serving, or go on with it, as `meshwright serving tune` does; `asked` is that
    of `prepare_serving_study`."""
    spec = named_model(model) if isinstance(model, str) else model
    place = serving_place(cluster, folder=Path(folder))
    prepared = prepare_serving_study(spec, place, engine=engine, loads=loads, **asked)
    return tune_serving(
        prepared,
        ServingTuning(folder=Path(folder), limits=study or StudyLimits(), launcher=launcher),
    )
