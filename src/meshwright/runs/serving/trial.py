"""What one run is: an engine that serves one deployment, under one load after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import yaml

from meshwright.platforms.executor import JobStatus
from meshwright.platforms.job import Job, JobOptions, job_of
from meshwright.runs.loads.figures import Figures, Limits, Served, ServedPoint
from meshwright.runs.loads.load import MARK, PORT, Line, Load, ServeJob, line_of
from meshwright.runs.loop import Judge
from meshwright.runs.outcome import Evidence, Failure, FailureClass, classify, read_run_logs
from meshwright.runs.record import Outcome
from meshwright.runs.serving.record import Deployment
from meshwright.runs.store import RUN_LOGS
from meshwright.serving.request import Objective, ServingRequest
from meshwright.serving.settings import settled
from meshwright.software.contract import Exported, ExportedFile
from meshwright.software.deepspeed.trainer import decoder_config
from meshwright.software.defaults import complete_details
from meshwright.software.serving import CONFIG_FILE, EngineCommand, ServedWorker, engine_command
from meshwright.software.settings import ModelDetails
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.hardware.cluster import Pool
from meshwright.values.workload import Workload

__all__ = [
    "OWN_ENGINE",
    "ServingTrial",
    "job_of_deployment",
    "judge_serving",
    "outcome_of_lines",
    "refusal_of_deployment",
]


def judge_serving(chips_of: Callable[[str], int]) -> Judge:
    """Return what reads the folder of a run; `chips_of` gives the chips by the folder's name."""

    def judge(status: JobStatus, folder: Path, silent_s: float | None) -> Outcome | None:
        if not status.ended and silent_s is None:
            return None
        logs = [folder / name for name in RUN_LOGS]
        # What we wrote of it ourselves is no cause.
        evidence = [found for found in read_run_logs(logs).evidence if MARK not in found.line]
        failure = classify(status, evidence=evidence, silent_s=silent_s)
        if not status.ended and failure is None:
            return None
        lines, chips = [line for path in logs for line in _lines(path)], chips_of(folder.name)
        return outcome_of_lines(lines, failure=failure, evidence=evidence, chips=chips)

    return judge


def outcome_of_lines(
    lines: Sequence[Line], *, failure: Failure | None, evidence: Sequence[Evidence], chips: int
) -> Served | Failure:
    """Return the points of a run that measured any, else why it failed.

    A point that failed gets the line of the engine's log that names the cause, where there is one:
    what the engine said last is often an echo of it.
    """
    cause = next((found for found in evidence if found.tier in ("cause", "exception")), None)
    points = [_point(line.content, cause) for line in lines if line.kind == "point"]
    ready = next((line.content for line in lines if line.kind == "ready"), None)
    if ready is not None and any(point.error is None for point in points):
        notes = tuple(str(note) for note in ready["notes"])
        return Served(
            points=tuple(points), ready_s=float(ready["ready_s"]), chips=chips, notes=notes
        )
    if cause is not None and cause.failure_class != "unknown":
        return cause.failure()
    told = next((line.content for line in lines if line.kind == "failed"), None)
    if told is not None:
        word = cast("FailureClass", told["failure_class"])
        line = cause.line if cause is not None else cast("str | None", told["evidence"])
        return Failure(failure_class=word, message=str(told["message"]), evidence=line)
    if points:
        first = points[0]
        return Failure(failure_class="unknown", message=str(first.error), evidence=first.evidence)
    words = "it ended without a word of what was measured"
    return failure or Failure(failure_class="unknown", message=words)


def _point(content: Mapping[str, Any], cause: Evidence | None) -> ServedPoint:
    told, error = content["evidence"], content["error"]
    return ServedPoint(
        load=str(content["name"]),
        figures=None if content["figures"] is None else Figures.of(content["figures"]),
        error=error,
        evidence=cause.line if error is not None and cause is not None else told,
    )


def _lines(path: Path) -> Iterator[Line]:
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            for text in stream:
                line = line_of(text)
                if line is not None:
                    yield line
    except OSError:
        return


OWN_ENGINE = "transformers"
"""The engine that serves without a checkpoint: random weights of the model's shape."""
_JOB_FILE, _MODEL_FILE = "serve.json", "config.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingTrial:
    """How every run of a study is done."""

    loads: tuple[Load, ...]
    limits: Limits = field(default_factory=Limits)
    objective: Objective = "throughput"
    model_path: str | None = None
    """What the engine loads; None: random weights, which transformers alone makes of a shape."""
    port: int | None = None
    ready_s: float = 900.0
    patience_s: float = 600.0
    extra: tuple[str, ...] = ()
    """The user's own words for the engine."""

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(load.longest for load in self.loads)

    @property
    def most_sequences(self) -> int:
        """Requests under way at most; of arrivals at given times all of them may be."""
        return max(load.clients or len(load.asks) for load in self.loads)

    def to_dict(self) -> dict[str, Any]:
        """Return plain types, for study.yaml; a load by name and size, a trace by its requests."""
        loads = [
            {
                "name": load.name,
                "requests": len(load.asks),
                "seed": load.seed,
                **({"asks": [asdict(ask) for ask in load.asks]} if load.value is None else {}),
            }
            for load in self.loads
        ]
        return {"kind": "serving", **asdict(self), "loads": loads, "extra": list(self.extra)}


def _served(trial: ServingTrial, request: ServingRequest, deployment: Deployment) -> ServedWorker:
    """What the engine's command says of a deployment."""
    sequences = -(-trial.most_sequences // deployment.worker.attention_dp)
    settings, engine = deployment.settings, settled(request.engine, deployment.settings)
    return ServedWorker(
        model=request.model,
        path=_MODEL_FILE if trial.model_path is None else trial.model_path,
        engine=engine,
        worker=deployment.worker,
        weights=deployment.weights,
        cache=deployment.cache,
        max_len=trial.longest,
        max_sequences=settings.sequences or min(sequences, engine.max_sequences),
        drafted=settings.drafted or None,
        settings=settings,
        port=PORT,
        extra=trial.extra,
    )


def job_of_deployment(
    trial: ServingTrial,
    request: ServingRequest,
    deployment: Deployment,
    *,
    options: JobOptions,
    seconds: int,
) -> Job:
    """Return the job of one run, with its limit of time; ConfigError where there can be none."""
    pool = _pool(request.cluster.pools[0], deployment)
    command = engine_command(_served(trial, request, deployment))
    texts = {_JOB_FILE: _serve_job(trial, request, pool, command).to_json()}
    if command.config is not None:
        texts[CONFIG_FILE] = yaml.safe_dump(dict(command.config), sort_keys=False)
    if trial.model_path is None:
        texts[_MODEL_FILE] = _model_file(request, trial.longest)
    exported = Exported(
        target=request.engine.name,
        files=tuple(ExportedFile(name=name, text=text) for name, text in texts.items()),
        command=("python3", "-m", "meshwright.runs.loads", _JOB_FILE),
        runs_on="node",
    )
    job = job_of(exported, model=request.model.name, pool=pool, options=options)
    return replace(job, time_limit_s=seconds)


def _serve_job(
    trial: ServingTrial, request: ServingRequest, pool: Pool, command: EngineCommand
) -> ServeJob:
    # One core is one process's; and a model that is made here is not to be looked for elsewhere.
    environment = {"OMP_NUM_THREADS": "1"} if pool.node.chip.generation == "cpu" else {}
    environment |= {"HF_HUB_OFFLINE": "1"} if trial.model_path is None else {}
    return ServeJob(
        command=command.words,
        loads=trial.loads,
        environment=environment,
        port=trial.port,
        vocab=request.model.vocab,
        ready_s=trial.ready_s,
        patience_s=trial.patience_s,
        limits=trial.limits,
    )


def _pool(pool: Pool, deployment: Deployment) -> Pool:
    """The chips of one copy, which are on one node: what starts the engine runs there."""
    chips = deployment.worker.chips
    if chips > pool.node.chips_per_node:
        raise ConfigError(
            f"{deployment.worker.name} on nodes of {pool.node.chips_per_node}: a run is one engine"
            " on one node"
        )
    return replace(pool, num_chips=chips)


def _model_file(request: ServingRequest, longest: int) -> str:
    if request.engine.name != OWN_ENGINE:
        raise ConfigError(
            f"{request.engine.name} loads a checkpoint: give --model-path, a folder or a name that"
            " it can fetch"
        )
    model = request.model
    details = complete_details(ModelDetails(), model=model, work=Workload(seq_len=longest))
    config = decoder_config(model, details, max_positions=longest, name=OWN_ENGINE)
    return json.dumps(config, indent=1) + "\n"


def refusal_of_deployment(
    trial: ServingTrial, request: ServingRequest, deployment: Deployment
) -> str | None:
    """Say why the engine can't serve a deployment; None where it can."""
    try:
        job_of_deployment(trial, request, deployment, options=JobOptions(), seconds=60)
    except CannotExpress as error:
        return f"{error.target}: {error.reason}"
    return None
