"""Flags that say how an export is started, shared by the commands that write exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from meshwright.platforms.job import JobText
    from meshwright.sizing.duration import Training
    from meshwright.software.contract import Exported
    from meshwright.software.plan import TrainingPlan

__all__ = [
    "AccountFlag",
    "CarbonFlag",
    "CpusFlag",
    "EvalIntervalFlag",
    "EvalStepsFlag",
    "ImageFlag",
    "InstanceFlag",
    "JobFileFlag",
    "JobNameFlag",
    "LauncherFlag",
    "LauncherWordFlag",
    "LogDirFlag",
    "MountFlag",
    "MtbfFlag",
    "NodeMemoryFlag",
    "NodePriceFlag",
    "PartitionFlag",
    "PowerFlag",
    "PriceFlag",
    "PriorityFlag",
    "PueFlag",
    "RestartFlag",
    "SaveFlag",
    "SharedMemoryFlag",
    "StartFlag",
    "TimeFlag",
    "WorkdirFlag",
    "WriteFlag",
    "job_for",
    "price_per_chip",
    "read_job_file",
    "training_of",
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
    from meshwright.platforms.job import JobOptions, job_of
    from meshwright.platforms.registry import job_text
    from meshwright.values.errors import ConfigError

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
    from meshwright.values.errors import ConfigError
    from meshwright.values.text import read_yaml

    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"job {path}: {getattr(error, 'strerror', None) or 'not a text in UTF-8'}"
        ) from None
    return read_yaml(text, what=f"job {path}")


PriceFlag = Annotated[
    float | None, typer.Option(help="USD per chip and hour [default: the catalogue's].")
]
NodePriceFlag = Annotated[
    float | None, typer.Option(help="USD per node and hour, instead of --usd-per-hour.")
]
EvalIntervalFlag = Annotated[
    int | None, typer.Option(help="Steps between evaluations; 0 evaluates never [default: 1000].")
]
EvalStepsFlag = Annotated[int | None, typer.Option(help="Batches of one evaluation [default: 10].")]
MtbfFlag = Annotated[
    float | None,
    typer.Option("--chip-mtbf-hours", help="Hours between failures of one chip [default: 50000]."),
]
RestartFlag = Annotated[
    str | None,
    typer.Option(
        "--restart", metavar="TIME", help="From a failure to the first step again [default: 15m]."
    ),
]
SaveFlag = Annotated[
    str | None,
    typer.Option(
        "--save-every", metavar="TIME", help="Between checkpoints [default: the best, by Daly]."
    ),
]
WriteFlag = Annotated[
    float | None,
    typer.Option("--write-gb-per-s", help="Of one node into shared storage [default: 0.625]."),
]
PowerFlag = Annotated[
    float | None,
    typer.Option(
        "--power-share",
        help="Power of a chip with its part of the server, over the chip's limit [default: 1.1].",
    ),
]
PueFlag = Annotated[
    float | None,
    typer.Option("--pue", help="Power usage effectiveness of the building [default: 1.1]."),
]
CarbonFlag = Annotated[
    float | None,
    typer.Option("--kg-co2-per-kwh", help="Of the grid [default: 0.429, the United States]."),
]


def training_of(
    tokens: int,
    *,
    eval_interval: int | None,
    eval_steps: int | None,
    mtbf_hours: float | None,
    restart: str | None,
    save_every: str | None,
    write_gb_per_s: float | None,
    power_share: float | None = None,
    pue: float | None = None,
    kg_co2_per_kwh: float | None = None,
) -> Training:
    """Return the Training of the flags that were given; the others keep their documented values."""
    from meshwright.sizing.duration import Footprint, Reliability, Training
    from meshwright.values.units import GB, HOUR_S, parse_duration

    reliability: dict[str, Any] = {
        "chip_mtbf_s": None if mtbf_hours is None else mtbf_hours * HOUR_S,
        "restart_s": None if restart is None else float(parse_duration(restart, name="restart")),
        "save_interval_s": (
            None if save_every is None else float(parse_duration(save_every, name="save_every"))
        ),
        "write_bytes_per_s_per_node": None if write_gb_per_s is None else write_gb_per_s * GB,
    }
    footprint = {"power_share": power_share, "pue": pue, "kg_co2_per_kwh": kg_co2_per_kwh}
    evaluation: dict[str, Any] = (
        {} if eval_interval is None else {"eval_interval": eval_interval or None}
    )
    if eval_steps is not None:
        evaluation["eval_steps"] = eval_steps
    return Training(
        tokens=tokens,
        reliability=Reliability(**_given(reliability)),
        footprint=Footprint(**_given(footprint)),
        **evaluation,
    )


def price_per_chip(
    *, per_chip: float | None, per_node: float | None, cluster: str, gpus_per_node: int | None
) -> float | None:
    """Return USD per chip and hour; a node's price is shared by its chips."""
    from meshwright.platforms.given import cluster_from_flag
    from meshwright.values.errors import ConfigError

    if per_node is None:
        return per_chip
    if per_chip is not None:
        raise ConfigError("--usd-per-hour and --usd-per-node-hour: give one of them")
    return (
        per_node
        / cluster_from_flag(cluster, gpus_per_node=gpus_per_node).pools[0].node.chips_per_node
    )


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
