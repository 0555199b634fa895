"""Flags that say how an export is started, shared by the commands that write exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from meshwright.exports import Exported, TrainingPlan
    from meshwright.exports.jobs import JobText

__all__ = [
    "AccountFlag",
    "CpusFlag",
    "ImageFlag",
    "InstanceFlag",
    "JobFileFlag",
    "JobNameFlag",
    "LauncherFlag",
    "LauncherWordFlag",
    "LogDirFlag",
    "MountFlag",
    "NodeMemoryFlag",
    "PartitionFlag",
    "PriorityFlag",
    "SharedMemoryFlag",
    "StartFlag",
    "TimeFlag",
    "WorkdirFlag",
    "job_for",
    "read_job_file",
]

LauncherFlag = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="PLATFORM",
        help=(
            "Write a job script too: torchrun, slurm, k8s-trainjob, -pytorchjob, -jobset, -mpijob,"
            " bcp, runai, lepton, sky, pai-dlc."
        ),
    ),
]
JobFileFlag = Annotated[
    Path | None,
    typer.Option(
        "--job", metavar="FILE", help="The options below in YAML; flags go before its values."
    ),
]
JobNameFlag = Annotated[
    str | None, typer.Option("--job-name", help="Name of the job [default: the model's].")
]
StartFlag = Annotated[
    str | None,
    typer.Option(
        "--start", help="torchrun or ranks: who starts processes [default: the platform's way]."
    ),
]
TimeFlag = Annotated[
    str | None,
    typer.Option("--time", help="Limit on the job's time: 5D, 10h, 23:30:00, 4:23:30:00."),
]
ImageFlag = Annotated[str | None, typer.Option("--image", help="Container image.")]
MountFlag = Annotated[
    list[str] | None,
    typer.Option("--mount", metavar="SOURCE:TARGET[:ro]", help="What the container sees."),
]
WorkdirFlag = Annotated[
    str | None, typer.Option("--workdir", help="Folder that the program starts in.")
]
AccountFlag = Annotated[
    str | None, typer.Option("--account", help="Who pays: account, organization or project.")
]
PartitionFlag = Annotated[
    str | None,
    typer.Option(
        "--partition", help="Where the job waits: partition, queue, ACE, node pool or group."
    ),
]
InstanceFlag = Annotated[
    str | None, typer.Option("--instance", help="Kind of node, in the platform's words.")
]
CpusFlag = Annotated[int | None, typer.Option("--cpus", help="Cores of one node.")]
NodeMemoryFlag = Annotated[
    str | None,
    typer.Option("--node-memory", metavar="SIZE", help="Host memory of one node, 1000Gi."),
]
SharedMemoryFlag = Annotated[
    str | None,
    typer.Option("--shared-memory", metavar="SIZE", help="Shared memory of one node, 256Gi."),
]
PriorityFlag = Annotated[str | None, typer.Option("--priority", help="In the platform's words.")]
LogDirFlag = Annotated[str | None, typer.Option("--log-dir", help="Folder for the job's output.")]
LauncherWordFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher-word", metavar="WORD", help="One more option for the platform, as it is."
    ),
]


def job_for(
    exported: Exported,
    plan: TrainingPlan,
    *,
    launcher: str | None,
    job_file: Path | None,
    given: dict[str, Any],
) -> JobText | None:
    """Return the job script of an export, or None where none is asked for; flags that would then
    have no effect are refused."""
    from meshwright.errors import ConfigError
    from meshwright.exports.jobs import JobOptions, job_of, job_text

    flags = {key: value for key, value in given.items() if value is not None}
    if launcher is None:
        if flags or job_file is not None:
            names = ", ".join(
                [*(["--job"] if job_file is not None else []), *(f"{key}" for key in flags)]
            )
            raise ConfigError(f"{names}: of no effect without --launcher, such as --launcher slurm")
        return None
    options = JobOptions.of({**({} if job_file is None else read_job_file(job_file)), **flags})
    return job_text(
        job_of(exported, model=plan.model.name, pool=plan.pool, options=options), launcher=launcher
    )


def read_job_file(path: Path) -> dict[str, Any]:
    """Return the keys and values of a job file."""
    from meshwright.errors import ConfigError
    from meshwright.yaml_text import read_yaml

    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"job {path}: {getattr(error, 'strerror', None) or 'not a text in UTF-8'}"
        ) from None
    return read_yaml(text, what=f"job {path}")
