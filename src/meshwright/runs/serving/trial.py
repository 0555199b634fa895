"""What one run is: an engine that serves one deployment, and the loads that it gets one after the
other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import yaml

from meshwright.errors import CannotExpress, ConfigError
from meshwright.exports.defaults import complete_details
from meshwright.exports.engines.commands import CONFIG_FILE, EngineCommand, engine_command
from meshwright.exports.engines.served import ServedWorker
from meshwright.exports.exported import Exported, ExportedFile
from meshwright.exports.hf.trainer import decoder_config
from meshwright.exports.jobs import Job, JobOptions, job_of
from meshwright.exports.settings import ModelDetails
from meshwright.hardware.cluster import Pool
from meshwright.loads.figures import Limits
from meshwright.loads.job import PORT, ServeJob
from meshwright.loads.load import Load
from meshwright.runs.serving.deployment import Deployment
from meshwright.serving.request import Objective, ServingRequest
from meshwright.workload import Workload

__all__ = [
    "OWN_ENGINE",
    "ServingTrial",
    "job_of_deployment",
    "refusal_of_deployment",
    "served_worker",
]

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
        """Return it in plain types, for study.yaml; a load by its name and size, a trace by its
        requests."""
        loads = [
            {
                "name": load.name,
                "requests": len(load.asks),
                "seed": load.seed,
                **({"asks": load.to_dict()["asks"]} if load.value is None else {}),
            }
            for load in self.loads
        ]
        return {
            "kind": "serving",
            "loads": [json.loads(json.dumps(load)) for load in loads],
            "limits": asdict(self.limits),
            "objective": self.objective,
            "model_path": self.model_path,
            "port": self.port,
            "ready_s": self.ready_s,
            "patience_s": self.patience_s,
            "extra": list(self.extra),
        }


def served_worker(
    trial: ServingTrial, request: ServingRequest, deployment: Deployment
) -> ServedWorker:
    """Return what the engine's command says of a deployment."""
    return ServedWorker(
        model=request.model,
        path=_MODEL_FILE if trial.model_path is None else trial.model_path,
        engine=request.engine,
        worker=deployment.worker,
        weights=deployment.weights,
        cache=deployment.cache,
        max_len=trial.longest,
        max_sequences=min(
            -(-trial.most_sequences // deployment.worker.attention_dp), request.engine.max_sequences
        ),
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
    """Return the job of one run, with its limit of time; ConfigError where the engine can't serve
    the deployment."""
    pool = _pool(request.cluster.pools[0], deployment)
    command = engine_command(served_worker(trial, request, deployment))
    files = [ExportedFile(name=_JOB_FILE, text=_serve_job(trial, request, pool, command).to_json())]
    if command.config is not None:
        files.append(
            ExportedFile(
                name=CONFIG_FILE, text=yaml.safe_dump(dict(command.config), sort_keys=False)
            )
        )
    if trial.model_path is None:
        files.append(ExportedFile(name=_MODEL_FILE, text=_model_file(request, trial.longest)))
    exported = Exported(
        target=request.engine.name,
        files=tuple(files),
        command=("python3", "-m", "meshwright.loads", _JOB_FILE),
        runs_on="node",
    )
    return replace(
        job_of(exported, model=request.model.name, pool=pool, options=options), time_limit_s=seconds
    )


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
    return (
        json.dumps(decoder_config(model, details, max_positions=longest, name=OWN_ENGINE), indent=1)
        + "\n"
    )


def refusal_of_deployment(
    trial: ServingTrial, request: ServingRequest, deployment: Deployment
) -> str | None:
    """Say why the engine can't serve a deployment; None where it can."""
    try:
        job_of_deployment(trial, request, deployment, options=JobOptions(), seconds=60)
    except CannotExpress as error:
        return f"{error.target}: {error.reason}"
    return None
