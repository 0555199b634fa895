"""A task of SkyPilot."""

from __future__ import annotations

import json
from typing import Any

from meshwright.platforms.client import Client, Seen, client_platform
from meshwright.platforms.executor import state_table
from meshwright.platforms.job import Job, JobText, Mount, check_fields, dns_label, required, way
from meshwright.platforms.shell import MASTER_PORT, node_script, timeout_words, title
from meshwright.values.errors import ConfigError
from meshwright.values.text import write_yaml

__all__ = ["PLATFORMS", "sky_task"]

_MOST_LETTERS = 50


def sky_task(job: Job) -> JobText:
    """Write a task; SkyPilot has no limit on its time, so `timeout` stops it.

    `instance` is an accelerator such as H100; of jobs without GPUs a machine of the cloud.
    """
    check_fields(
        job, "sky", ("image", "mounts", "workdir", "partition", "instance", "port", "secrets")
    )
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
    if job.secrets:
        content["secrets"] = dict.fromkeys(job.secrets)  # null: `--secret NAME` brings its value
    content["run"] = _run(job)
    words = "".join(f"--secret {name} " for name in job.secrets)
    submit = f"sky launch {words}job.sky.yaml"
    comment = f"{title(job)}\n# Submit it: {submit}"
    return JobText(
        file_name="job.sky.yaml", text=f"{comment}\n{write_yaml(content)}", submit=submit
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
    meeting = (
        "# The first node is where all processes meet.\nMASTER_ADDR=${SKYPILOT_NODE_IPS%%$'\\n'*}"
    )
    return node_script(
        job,
        rank='"$SKYPILOT_NODE_RANK"',
        address='"$MASTER_ADDR"',
        port=str(MASTER_PORT),
        before=timeout_words(job),
        meeting=meeting,
        workdir=job.workdir,
    )


def _read(out: str, name: str) -> Seen | None:
    """The newest managed job of that name in a list."""
    start = out.find("[")
    try:
        jobs: list[dict[str, Any]] = json.loads(out[start:]) if start >= 0 else []
    except ValueError:
        return None
    named = [job for job in jobs if job.get("job_name") == name]
    newest = max(named, key=lambda job: int(job.get("job_id") or 0), default=None)
    if newest is None:
        return None
    return Seen(word=str(newest.get("status")), job_id=str(newest.get("job_id")))


STATES = state_table(
    {
        "queued": "PENDING SUBMITTED STARTING",
        "running": "RUNNING RECOVERING CANCELLING WINDING_DOWN",
        "succeeded": "SUCCEEDED",
        "cancelled": "CANCELLED",
        "failed": "FAILED FAILED_SETUP",
        "never_started": "FAILED_PRECHECKS FAILED_NO_RESOURCE",
        "node_failed": "FAILED_CONTROLLER",
    }
)
"""States of a managed job, by jobs/state.py of skypilot 0.14.1. A managed job ends its cluster;
`sky launch` would leave it running, and paid for."""
_CLIENT = Client(
    name="sky",
    program="sky",
    advice="pip install skypilot with your cloud, and see that `sky check` is well",
    source="skypilot 0.14.1, client/cli/command.py and jobs/state.py",
    submit=("sky", "jobs", "launch", "--yes", "--detach-run", "--name", "{name}", "job.sky.yaml"),
    secret="--secret",
    status=("sky", "jobs", "queue", "--all", "--output", "json"),
    read=_read,
    log=("sky", "jobs", "logs", "--no-follow", "--tail", "0", "--name", "{name}"),
    cancel=("sky", "jobs", "cancel", "--yes", "--name", "{name}"),
    states=STATES,
)

PLATFORMS = (client_platform(_CLIENT, title="SkyPilot", place=70, write=sky_task, copies=True),)
