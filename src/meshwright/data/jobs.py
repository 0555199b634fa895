"""Pipelines as jobs: one rank on each node, without GPUs, through the writers of job scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.data.recipe import read_recipe
from meshwright.exports.jobs import Job, JobOptions, JobText, job_text, parse_mount
from meshwright.units import parse_duration

__all__ = ["recipe_job"]


def recipe_job(recipe: Path, *, launcher: str, nodes: int, options: Mapping[str, Any]) -> JobText:
    """Write the job that runs a recipe; the file is named as the nodes see it. ConfigError for a
    recipe that could not be run."""
    found = read_recipe(recipe)
    given = JobOptions.of(options)
    job = Job(
        name=given.name or f"data-{found.pipeline}",
        command=("meshwright", "data", "run", str(recipe)),
        runs_on="node",
        nodes=nodes,
        gpus_per_node=1,
        asks_for="nodes",
        time_limit_s=None if given.time is None else parse_duration(given.time, name="time"),
        image=given.image,
        mounts=tuple(map(parse_mount, given.mounts)),
        workdir=given.workdir,
        account=given.account,
        partition=given.partition,
        instance=given.instance,
        log_dir=given.log_dir,
        cpus=given.cpus,
        memory=given.memory,
        shared_memory=given.shared_memory,
        priority=given.priority,
        words=given.words,
    )
    return job_text(job, launcher=launcher)
