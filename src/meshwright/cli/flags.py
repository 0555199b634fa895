"""Flags that several commands share, and what commands make of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.api.problems import read_text
from meshwright.cli.options import REQUIRED, Given, fields_of, layout_words, option
from meshwright.cli.terminal import tell_notes
from meshwright.platforms.job import JobOptions
from meshwright.search.request import PlanRequest
from meshwright.sizing.duration import Footprint, Reliability, Training
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml

if TYPE_CHECKING:
    from meshwright.platforms.job import JobText
    from meshwright.search.problem import (
        Asked,
    )
    from meshwright.software.contract import Exported
    from meshwright.software.plan import TrainingPlan

__all__ = [
    "CALIBRATION",
    "CLUSTER",
    "EVALUATION",
    "FAILURES",
    "FORCE",
    "GPUS_PER_NODE",
    "HF",
    "HOW",
    "LAYOUT",
    "POWER",
    "PROFILE",
    "RAN",
    "RUN_JOB",
    "WHERE",
    "HfFlag",
    "JobFileFlag",
    "asked_with",
    "job_for",
    "job_options",
    "model_words",
    "price_per_chip",
    "read_job_file",
    "training_of",
]

HfFlag = Annotated[
    Path | None,
    typer.Option("--hf", help="A Hugging Face config.json, or its folder, instead of a name."),
]
JobFileFlag = Annotated[
    Path | None,
    typer.Option(
        "--job", metavar="FILE", help="The options below in YAML; flags go before its values."
    ),
]
LAYOUT: Any = layout_words(
    REQUIRED, "The layout, tp=8,pp=4,mbs=1; the rest follows. Needed, or some of the axes below."
)
CLUSTER: Any = fields_of(PlanRequest, "cluster", required=("cluster",))
WHERE: Any = fields_of(PlanRequest, "model", "cluster", "seq_len", required=("cluster", "seq_len"))
"""What a layout can't be looked at without."""
HOW: Any = fields_of(
    PlanRequest,
    *("gbs", "gpus_per_node", "decoder_seq_len", "precision", "attention", "routing", "stack"),
    *(
        "sample_len",
        "cp_comm_type",
        "cuda_graphs",
        "switches",
        "fused_norm",
        "finetune",
        "host_memory_gib",
        "nvme_gib",
        "lora_rank",
        "lora_targets",
    ),
    *("calibration", "profile", "megatron_version", "max_memory_gib", "headroom"),
)
CALIBRATION: Any = option(None, "What `meshwright calibrate` wrote.", metavar="FILE")
PROFILE: Any = option(None, "What `meshwright profile` wrote.", metavar="FILE")
HF: Any = option(None, "A Hugging Face config.json to take the model from.")
FORCE: Any = option(False, "Write over a file that this command did not write.")
RAN: Any = option(
    False, "It ran so: where it does not fit by our count, take what it must have done otherwise."
)
GPUS_PER_NODE: Any = option(None, "Chips in one server [default: as the chip is sold].")
RUN_JOB: Any = fields_of(
    JobOptions, "image", "mounts", "workdir", "account", "partition", "instance", "words"
)
"""What a study or a training says of its jobs; the rest it says itself."""
EVALUATION: Any = fields_of(Training)
FAILURES: Any = fields_of(Reliability)
POWER: Any = fields_of(Footprint)


def asked_with(given: Given, hf: Path | None, layout: str) -> Asked:
    """Look everything up, fill in what the layout leaves open, and hold it to the rules."""
    from meshwright import api
    from meshwright.search.problem import (
        ask,
    )
    from meshwright.values.models.said_size import model_notes

    model = model_words(given.get("model"), hf)
    problem = api.problem_of(PlanRequest.of({**given, "model": model}))
    if hf is None:
        tell_notes(model_notes(problem.setting.model))
    return ask(layout, problem)


def model_words(name: str | None, hf: Path | None) -> str | dict[str, Any]:
    """Return what a request takes for a name or a config."""
    if (name is None) == (hf is None):
        raise ConfigError("give a model: either a name or --hf with a config.json")
    if name is not None:
        return name
    from meshwright.platforms.given import read_hf_config
    from meshwright.search.problem import dims_of

    assert hf is not None
    reading = read_hf_config(hf)
    tell_notes(reading.notes)
    return dims_of(reading.spec, details=reading.details)


def job_for(
    exported: Exported,
    plan: TrainingPlan,
    *,
    launcher: str | None,
    job_file: Path | None,
    given: Given,
) -> JobText | None:
    """Return an export's job script, or None without one; flags that have no effect are refused."""
    from meshwright.platforms.job import job_of
    from meshwright.platforms.registry import job_text

    if launcher is None:
        if given or job_file is not None:
            names = ", ".join([*(["--job"] if job_file is not None else []), *given])
            raise ConfigError(f"{names}: of no effect without --launcher, such as --launcher slurm")
        return None
    options = job_options(job_file, given)
    job = job_of(exported, model=plan.model.name, pool=plan.pool, options=options)
    return job_text(job, launcher=launcher)


def read_job_file(path: Path | None) -> dict[str, Any]:
    """Return the keys and values of a job file, nothing without one."""
    if path is None:
        return {}
    return read_yaml(read_text(path, f"job {path}"), what=f"job {path}")


def job_options(path: Path | None, given: Given) -> JobOptions:
    """Return the options of a job file, with flags before its values."""
    return JobOptions.of({**read_job_file(path), **given})


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
    from meshwright.platforms.given import cluster_from_flag

    if per_node is None:
        return per_chip
    if per_chip is not None:
        raise ConfigError("--usd-per-hour and --usd-per-node-hour: give one of them")
    pool = cluster_from_flag(cluster, gpus_per_node=gpus_per_node).pools[0]
    return per_node / pool.node.chips_per_node
