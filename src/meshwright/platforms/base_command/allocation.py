"""Jobs inside a job of Base Command that is running already: bcprun starts their processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshwright.platforms.base_command.script import node_lines
from meshwright.platforms.job import Job, JobText, check_fields, way
from meshwright.platforms.local.executor import LocalExecutor, LocalOptions
from meshwright.platforms.registry import job_text
from meshwright.platforms.shell import (
    STRICT,
    asked_for,
    heredoc,
    reasons,
    script,
    timeout_words,
    title,
)
from meshwright.values.errors import ConfigError, LauncherError, MissingExtraError

__all__ = [
    "Allocation",
    "AllocationOptions",
    "BcprunExecutor",
    "allocation_here",
    "bcprun_script",
]

_OUTSIDE = (
    "bcprun: NGC_ARRAY_SIZE is not set or bcprun is not on the path, so this is no job of Base"
    " Command; --launcher bcp sends one"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """The nodes of the job that this process is in."""

    nodes: int
    gpus_per_node: int | None
    """None: Base Command does not say."""


def allocation_here(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """Return the nodes of the job that we are in, None outside: NGC_ARRAY_SIZE tells, and bcprun is
    on the path."""
    nodes = environment.get("NGC_ARRAY_SIZE", "")
    if not nodes.isdecimal() or shutil.which("bcprun", path=environment.get("PATH")) is None:
        return None
    gpus = environment.get("NGC_GPUS_PER_NODE", "")
    return Allocation(nodes=int(nodes), gpus_per_node=int(gpus) if gpus.isdecimal() else None)


def bcprun_script(job: Job) -> JobText:
    """Write a script for the first node of a running job, whose image and mounts all have."""
    check_fields(job, "bcprun", ("workdir", "secrets"))
    ranks = job.nodes > 1 and job.runs_on == "rank"
    way(job, "bcprun", ("ranks",) if ranks else ("torchrun",))
    how = "One task per GPU: bcprun starts every process." if ranks else ""
    blocks = [
        f"#!/usr/bin/env bash\n{title(job, how)}\n# Start it on the first node: bash job.sh\n"
        f"{STRICT}",
        reasons(job),
        asked_for(job),
        heredoc("commandline", node_lines(job, handed=job.secrets)),
        " ".join([*timeout_words(job), 'bash -c "$commandline"']),
    ]
    return JobText(file_name="job.sh", text=script(blocks), submit="bash job.sh")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationOptions:
    """The job of Base Command that this process is in."""

    stop_grace_s: float = 10.0
    """Time between asking a job to end and killing it."""


class BcprunExecutor(LocalExecutor):
    """bcprun on the nodes that this job of Base Command has. Runs wait for each other, as each has
    all nodes."""

    name = "bcprun"

    def __init__(self, options: AllocationOptions | None = None) -> None:
        own = options or AllocationOptions()
        super().__init__(LocalOptions(stop_grace_s=own.stop_grace_s))

    def check(self) -> None:
        if find_spec("psutil") is None:
            raise MissingExtraError("psutil", "train")
        if allocation_here() is None:
            raise LauncherError(_OUTSIDE)

    def slots(self, job: Job) -> int:
        """Return one: every run has all nodes."""
        here = allocation_here()
        if here is None:
            raise ConfigError(_OUTSIDE)
        most = here.gpus_per_node or job.gpus_per_node
        if job.nodes > here.nodes or job.gpus_per_node > most:
            raise ConfigError(
                f"bcprun: {job.name} wants {job.nodes} nodes of {job.gpus_per_node} GPUs, and this"
                f" job has {here.nodes} of {most}"
            )
        return 1

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        return job_text(self._named(job, label), launcher=self.name)

    def _all_units(self) -> tuple[str, ...]:
        return (f"allocation-{os.environ.get('NGC_JOB_ID', '0')}",)

    def _spec(self, job: Job, label: str) -> dict[str, Any]:
        return {**super()._spec(job, label), "kind": "nodes", "count": 1}

    def _named(self, job: Job, label: str) -> Job:
        # The image and the mounts are those of the job that we are in.
        return replace(super()._named(job, label), image=None, mounts=())
