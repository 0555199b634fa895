"""A job of Alibaba Cloud's PAI-DLC: the body of CreateJob (pai-dlc 2020-12-03)."""

from __future__ import annotations

import json
from typing import Any

from meshwright.platforms.contract import Platform
from meshwright.platforms.job import BATCH, SIZES, Job, JobText, Mount, check_fields, required, way
from meshwright.platforms.shell import MASTER_PORT, STRICT, node_script, quote, title
from meshwright.values.errors import ConfigError
from meshwright.values.units import MINUTE_S

__all__ = ["PLATFORMS", "pai_dlc_job"]

_MOST_BYTES = 65_536
"""Of all parameters of CreateJob together, by its documentation."""
_SPACE = "the id of a workspace of PAI, such as 12345"
_PRIORITIES = range(1, 10)


def pai_dlc_job(job: Job) -> JobText:
    """Write the body of a PyTorchJob with one worker per node; DLC sets RANK, the number of the
    node, MASTER_ADDR and MASTER_PORT.

    `partition` is a resource quota, whose nodes are asked for by cpus, memory, shared memory and
    GPUs; without it `instance` is a type of machine of the public resources, which has them by
    itself.
    """
    known = [name for name in (*BATCH, *SIZES) if name not in ("log_dir", "port")]
    check_fields(job, "pai-dlc", known)
    way(job, "pai-dlc", ("torchrun",))
    content: dict[str, Any] = {
        "WorkspaceId": required(job, "pai-dlc", "account", _SPACE),
        "DisplayName": job.name,
        "JobType": "PyTorchJob",
        "JobSpecs": [{"Type": "Worker", "PodCount": job.nodes, **_node(job)}],
        "UserCommand": f"exec bash -c {quote(_command(job))}",
    }
    if job.partition:
        content["ResourceId"] = job.partition
    if job.priority is not None:
        content["Priority"] = _priority(job.priority)
    if job.time_limit_s:
        content["JobMaxRunningTimeMinutes"] = -(-job.time_limit_s // MINUTE_S)
    if job.mounts:
        content["DataSources"] = [_source(mount) for mount in job.mounts]
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if len(text.encode()) > _MOST_BYTES:
        raise ConfigError(
            f"pai-dlc: the job has {len(text.encode()):,} bytes, and CreateJob takes"
            f" {_MOST_BYTES:,}; put its files on a mount"
        )
    submit = (
        'aliyun pai-dlc POST /api/v1/jobs --header "Content-Type=application/json" --body "$(cat'
        ' job.dlc.json)"'
    )
    return JobText(file_name="job.dlc.json", text=text, submit=submit)


def _node(job: Job) -> dict[str, Any]:
    image = "dsw-registry.cn-hangzhou.cr.aliyuncs.com/pai/pytorch:2.3"
    node: dict[str, Any] = {"Image": required(job, "pai-dlc", "image", image)}
    if job.partition is None:
        sizes = ("cpus", "memory", "shared_memory")
        given = [name for name in sizes if getattr(job, name) is not None]
        if given:
            raise ConfigError(
                f"pai-dlc: {', '.join(given)}: a type of machine has its own; they are asked for of"
                " a quota (partition)"
            )
        example = "ecs.gn7e-c16g1.4xlarge, or a quota as partition"
        return {**node, "EcsSpec": required(job, "pai-dlc", "instance", example)}
    if job.instance:
        raise ConfigError(
            f"pai-dlc: instance={job.instance}: of no effect in the quota {job.partition}; leave"
            " one of them out"
        )
    asked = {
        "CPU": None if job.cpus is None else str(job.cpus),
        "GPU": str(job.gpus_per_node) if job.asks_for == "gpus" else None,
        "Memory": job.memory,
        "SharedMemory": job.shared_memory,
    }
    for name, example in (("cpus", "96"), ("memory", "1000Gi")):
        required(job, "pai-dlc", name, example)
    told = {key: value for key, value in asked.items() if value is not None}
    return {**node, "ResourceConfig": told}


def _priority(text: str) -> int:
    if not text.isdecimal() or int(text) not in _PRIORITIES:
        raise ConfigError(f"priority={text}: pai-dlc has 1, the lowest, to 9")
    return int(text)


def _source(mount: Mount) -> dict[str, str]:
    """A dataset of the workspace by its id, or a store by its address."""
    access = {"MountAccess": "RO"} if mount.read_only else {}
    if mount.kind == "dataset":
        return {"DataSourceId": mount.source, "MountPath": mount.target, **access}
    if mount.kind != "path" or "://" not in mount.source:
        raise ConfigError(
            f"mount {mount.kind}={mount.source}: pai-dlc expects dataset=ID, or an address such as"
            " oss://BUCKET.oss-cn-hangzhou-internal.aliyuncs.com/PATH/"
        )
    return {"Uri": mount.source, "MountPath": mount.target, **access}


def _command(job: Job) -> str:
    return node_script(
        job,
        rank='"$RANK"',
        address='"$MASTER_ADDR"',
        port=f'"${{MASTER_PORT:-{MASTER_PORT}}}"',
        before=["exec"],
        head=f"{title(job)}\n{STRICT}",
        workdir=job.workdir,
    )


PLATFORMS = (
    Platform(
        name="pai-dlc",
        title="Deep Learning Containers of Alibaba Cloud's PAI",
        place=80,
        write=pai_dlc_job,
        without_gpus=True,
        needs="the aliyun command line, with rights for a workspace of PAI",
        why_not_started=(
            "its jobs are written and not started from here: that needs an executor that reads"
            " GetJob, ListJobs, StopJob and GetPodLogs of PAI, and a table of their states. Write"
            " the job by `meshwright export --launcher pai-dlc`, whose last line sends it"
        ),
        limit="JobMaxRunningTimeMinutes: {time}",
        form="minutes",
    ),
)
