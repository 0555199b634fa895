"""Flags that say how an export is started, and how long a training runs, shared by commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.cli.options import Given, fields_of
from meshwright.platforms.given import cluster_from_flag
from meshwright.platforms.job import JobOptions, JobText, job_of
from meshwright.platforms.registry import job_text
from meshwright.sizing.duration import Footprint, Reliability, Training
from meshwright.software.contract import Exported
from meshwright.software.plan import TrainingPlan
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml

__all__ = [
    "EVALUATION",
    "FAILURES",
    "POWER",
    "RUN_JOB",
    "JobFileFlag",
    "job_for",
    "job_options",
    "price_per_chip",
    "read_job_file",
    "training_of",
]

JobFileFlag = Annotated[
    Path | None,
    typer.Option(
        "--job", metavar="FILE", help="The options below in YAML; flags go before its values."
    ),
]
RUN_JOB: Any = fields_of(
    JobOptions, "image", "mounts", "workdir", "account", "partition", "instance", "words"
)
"""What a study or a training says of its jobs; the rest it says itself."""
EVALUATION: Any = fields_of(Training)
FAILURES: Any = fields_of(Reliability)
POWER: Any = fields_of(Footprint)


def job_for(
    exported: Exported,
    plan: TrainingPlan,
    *,
    launcher: str | None,
    job_file: Path | None,
    given: Given,
) -> JobText | None:
    """Return the job script of an export, or None where none is asked for; flags that would then
    have no effect are refused."""
    if launcher is None:
        if given or job_file is not None:
            names = ", ".join([*(["--job"] if job_file is not None else []), *given])
            raise ConfigError(f"{names}: of no effect without --launcher, such as --launcher slurm")
        return None
    job = job_of(
        exported,
        model=plan.model.name,
        pool=plan.pool,
        options=job_options(job_file, given),
    )
    return job_text(job, launcher=launcher)


def read_job_file(path: Path) -> dict[str, Any]:
    """Return the keys and values of a job file."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"job {path}: {getattr(error, 'strerror', None) or 'not a text in UTF-8'}"
        ) from None
    return read_yaml(text, what=f"job {path}")


def job_options(path: Path | None, given: Given) -> JobOptions:
    """Return the options of a job file, with flags before its values."""
    return JobOptions.of({**({} if path is None else read_job_file(path)), **given})


def training_of(
    tokens: int,
    *,
    evaluation: Given | None = None,
    failures: Given | None = None,
    power: Given | None = None,
) -> Training:
    """Return the Training of the flags that were given; the others keep their documented values."""
    return Training(
        tokens=tokens,
        reliability=Reliability(**failures or {}),
        footprint=Footprint(**power or {}),
        **evaluation or {},
    )


def price_per_chip(
    *, per_chip: float | None, per_node: float | None, cluster: str, gpus_per_node: int | None
) -> float | None:
    """Return USD per chip and hour; a node's price is shared by its chips."""
    if per_node is None:
        return per_chip
    if per_chip is not None:
        raise ConfigError("--usd-per-hour and --usd-per-node-hour: give one of them")
    return (
        per_node
        / cluster_from_flag(cluster, gpus_per_node=gpus_per_node).pools[0].node.chips_per_node
    )
