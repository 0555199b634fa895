"""A task of SkyPilot."""

from __future__ import annotations

from typing import Any

from meshwright.platforms.job import Job, JobText, Mount, check_fields, dns_label, required, way
from meshwright.platforms.shell import (
    MASTER_PORT,
    STRICT,
    environment,
    files,
    program,
    quote,
    script,
    start,
    timeout_words,
    title,
)
from meshwright.values.errors import ConfigError
from meshwright.values.text import write_yaml

__all__ = [
    "sky_task",
]

_MOST_LETTERS = 50


def sky_task(job: Job) -> JobText:
    """Write a task; SkyPilot has no limit on its time, so `timeout` stops it.

    `instance` is an accelerator such as H100; of jobs without GPUs a machine of the cloud.
    """
    check_fields(job, "sky", ("image", "mounts", "workdir", "partition", "instance", "port"))
    way(job, "sky", ("torchrun",))
    resources = _chips(job)
    if job.port:
        resources["ports"] = job.port
    if job.image:
        resources["image_id"] = f"docker:{job.image}"
    if job.partition:
        resources["infra"] = job.partition
    content = {
        "name": dns_label(job, "sky", _MOST_LETTERS),
        "num_nodes": job.nodes,
        "resources": resources,
    }
    if job.mounts:
        content["file_mounts"] = {mount.target: _source(mount) for mount in job.mounts}
    content["run"] = _run(job)
    comment = f"{title(job)}\n# Submit it: sky launch job.sky.yaml"
    return JobText(
        file_name="job.sky.yaml",
        text=f"{comment}\n{write_yaml(content)}",
        submit="sky launch job.sky.yaml",
    )


def _chips(job: Job) -> dict[str, Any]:
    """Without GPUs `instance` is a machine of the cloud, and the cloud's usual one without it."""
    if job.asks_for == "gpus":
        return {"accelerators": f"{required(job, 'sky', 'instance', 'H100')}:{job.gpus_per_node}"}
    return {"instance_type": job.instance} if job.instance else {}


def _source(mount: Mount) -> str | dict[str, str]:
    """A bucket is mounted, a path of the submitting machine is copied."""
    if mount.kind != "path" or mount.read_only:
        raise ConfigError(
            f"mount {mount.kind}={mount.source}: sky expects a path or a bucket such as s3://NAME,"
            " and cannot mount read only"
        )
    return {"source": mount.source, "mode": "MOUNT"} if "://" in mount.source else mount.source


def _run(job: Job) -> str:
    # NODE_IPS has one address per line.
    address = (
        "# The first node is where all processes meet.\nMASTER_ADDR=${SKYPILOT_NODE_IPS%%$'\\n'*}"
    )
    run = start(
        job,
        rank='"$SKYPILOT_NODE_RANK"',
        address='"$MASTER_ADDR"',
        port=str(MASTER_PORT),
        before=timeout_words(job),
    )
    go = f"cd -- {quote(job.workdir)}" if job.workdir else ""
    return script(
        [
            STRICT,
            environment(job),
            files(job),
            address if job.nodes > 1 else "",
            program(job.command),
            go,
            run,
        ]
    )
