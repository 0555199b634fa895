"""Jobs of the launcher's stages before they are written for a platform."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.compat.launcher.line import Line
from meshwright.platforms.base_command.script import one_gpu_instance
from meshwright.platforms.job import Job, parse_mount
from meshwright.platforms.shell import Copy, on_nodes
from meshwright.software.contract import EnvVar, ExportedFile
from meshwright.values.units import parse_duration

__all__ = ["Step", "job_name", "step"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One job, and what to know of it."""

    name: str
    does: str
    job: Job
    is_data: bool = False
    """Whether it is done once, unlike a training, which goes on, and a notebook."""


def job_name(text: str) -> str:
    """Return a name that every platform takes."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"job-{plain}")[:40].strip("-")


def step(
    line: Line,
    name: str,
    *,
    does: str,
    command: Sequence[str],
    nodes: int,
    time: str | None,
    logs: str,
    gpus_per_node: int | None = None,
    needs: Sequence[str] = (),
    programs: Sequence[str] = (),
    file: tuple[str, str] | None = None,
    environment: Sequence[EnvVar] = (),
    secrets: Sequence[str] = (),
    setup: str | None = None,
    copy: Copy | None = None,
    checks: bool = False,
) -> Step:
    """Return the job of a stage on the line's platform; without GPUs a process runs on each node.

    A node logs to `logs`, and looks for what the job needs before it starts. With `checks` it asks
    for one GPU on Base Command.
    """
    words, inside = line.platform.job, line.platform.launcher in ("bcprun", "local")
    job = Job(
        name=job_name(name),
        command=tuple(command),
        runs_on="node" if gpus_per_node is None else "rank",
        nodes=nodes,
        gpus_per_node=gpus_per_node or 1,
        asks_for="nodes" if gpus_per_node is None and not line.platform.is_local else "gpus",
        environment=tuple(environment),
        secrets=tuple(secrets),
        # The job that we are in has its own limit, image and mounts.
        time_limit_s=None if inside or time is None else parse_duration(time, name="time_limit"),
        files=() if file is None else (ExportedFile(name=file[0], text=file[1]),),
        image=None if inside else words.image,
        mounts=() if inside else tuple(map(parse_mount, words.mounts)),
        account=words.account,
        partition=words.partition,
        instance=one_gpu_instance(words.instance) if checks else words.instance,
        priority=words.priority,
        order=words.order,
        preempt=words.preempt,
        min_timeslice=words.min_timeslice,
        words=words.words,
    )
    whole = on_nodes(job, logs=logs, needs=needs, programs=programs, setup=setup, copy=copy)
    return Step(
        name=job.name,
        does=does,
        job=replace(whole, workdir=None),
        is_data=gpus_per_node is None,
    )
