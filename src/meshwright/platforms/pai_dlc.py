"""A job of Alibaba Cloud's PAI-DLC: the body of CreateJob (pai-dlc 2020-12-03), sent and
followed by the command line `aliyun`."""

from __future__ import annotations

import json
from typing import Any

from meshwright.platforms.client import Client, Seen, client_platform
from meshwright.platforms.executor import state_table
from meshwright.platforms.job import BATCH, SIZES, Job, JobText, Mount, check_fields, required, way
from meshwright.platforms.shell import MASTER_PORT, STRICT, node_script, quote, title
from meshwright.values.errors import ConfigError
from meshwright.values.units import MINUTE_S

__all__ = ["PLATFORMS", "pai_dlc_job"]

_MOST_BYTES = 65_536
"""Of all parameters of CreateJob together, by its documentation."""
_SPACE = "the id of a workspace of PAI, such as 12345"
_PRIORITIES = range(1, 10)
_FILE = "job.dlc.json"
_CREATE = 'aliyun pai-dlc POST /api/v1/jobs --header "Content-Type=application/json"'
_SINCE = ("--StartTime", "2020-12-03T00:00:00Z")
"""Before any job of this version of the service, which else tells of the last 7 days alone."""
_NEWLINE = "\n"


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
    return JobText(file_name=_FILE, text=text, submit=f'{_CREATE} --body "$(cat {_FILE})"')


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


def _read(out: str, name: str) -> Seen | None:
    """The newest job of that name; the service looks for a part of a name."""
    try:
        jobs: list[dict[str, Any]] = json.loads(out).get("Jobs") or []
    except (ValueError, AttributeError):
        return None
    named = [job for job in jobs if job.get("DisplayName") == name]
    newest = max(named, key=lambda job: str(job.get("GmtCreateTime")), default=None)
    if newest is None:
        return None
    # the pods of the one kind of task are numbered, and rank 0 prints
    pods = sorted(str(pod["PodId"]) for pod in newest.get("Pods") or [] if pod.get("PodId"))
    pod = next((pod for pod in pods if pod.endswith("-0")), pods[0] if pods else None)
    return Seen(word=str(newest.get("Status")), job_id=str(newest.get("JobId")), pod=pod)


def _log_text(out: str) -> str:
    """The lines of a pod's log, each ended."""
    try:
        lines: list[str] = json.loads(out).get("Logs") or []
    except (ValueError, AttributeError):
        return ""
    return "".join(f"{line.removesuffix(_NEWLINE)}{_NEWLINE}" for line in lines)


STATES = state_table(
    {
        "queued": "Creating Queuing Bidding EnvPreparing SanityChecking",
        "running": "Running Restarting Stopping SucceededReserving FailedReserving",
        "succeeded": "Succeeded",
        "failed": "Failed",
        "cancelled": "Stopped",
    }
)
"""Values of Status, alibabacloud-pai-dlc20201203 1.11.6. A job that is Reserving still holds its
nodes."""
_CLIENT = Client(
    name="pai-dlc",
    program="aliyun",
    advice=(
        "install Alibaba Cloud's command line, and give it a region and a key with rights for the"
        " workspace by `aliyun configure`"
    ),
    source="alibabacloud-pai-dlc20201203 1.11.6, client.py; REST calls of aliyun-cli's README",
    # bash reads the body of the file, which is also how `meshwright export` says to send it
    submit=("bash", "-c", f'exec {_CREATE} --body "$(cat "$0")"', _FILE),
    status=(
        *("aliyun", "pai-dlc", "GET", "/api/v1/jobs", "--DisplayName", "{name}", "{project}"),
        *("--SortBy", "GmtCreateTime", "--Order", "desc", "--PageSize", "100", *_SINCE),
    ),
    read=_read,
    log=(
        *("aliyun", "pai-dlc", "GET", "/api/v1/jobs/{id}/pods/{pod}/logs"),
        *("--MaxLines", "1000000", *_SINCE),
    ),
    log_text=_log_text,
    cancel=("aliyun", "pai-dlc", "POST", "/api/v1/jobs/{id}/stop"),
    states=STATES,
    project="--WorkspaceId",
)

PLATFORMS = (
    client_platform(
        _CLIENT,
        title="Deep Learning Containers of Alibaba Cloud's PAI",
        place=80,
        write=pai_dlc_job,
        limit="JobMaxRunningTimeMinutes: {time}",
        form="minutes",
        caveats=(
            "it tells no exit code, keeps no stderr apart, and does not say which job its limit"
            " ended: such a job reads as failed or cancelled",
        ),
    ),
)
