"""A distributed PyTorch workload of NVIDIA Run:ai, for its command line of version 2."""

from __future__ import annotations

import re

from meshwright.platforms.client import Client, Seen, client_platform
from meshwright.platforms.executor import state_table
from meshwright.platforms.job import (
    IMAGE,
    Job,
    JobText,
    Mount,
    check_fields,
    dns_label,
    mount_of,
    required,
    way,
)
from meshwright.platforms.shell import lines_of, node_script, submitting, timeout_words
from meshwright.values.errors import ConfigError

__all__ = ["PLATFORMS", "runai_script"]

_MOST_LETTERS = 50
"""Of a name: pods are called NAME-worker-N, and a host name has 63 letters."""


def runai_script(job: Job) -> JobText:
    """Write a script that submits one master and workers for the other nodes.

    Run:ai has no limit on the time of a workload, so `timeout` stops it; its operator sets
    MASTER_ADDR, MASTER_PORT and each pod's RANK.
    """
    check_fields(
        job,
        "runai",
        ("image", "mounts", "workdir", "account", "partition", "instance", "port", "words"),
    )
    way(job, "runai", ("torchrun",))
    return submitting(job, _submit(job), variable="pod", who="pod", text=_pod(job))


def _submit(job: Job) -> list[str]:
    words = [
        *(("--project", job.account) if job.account else ()),
        *("--image", required(job, "runai", "image", IMAGE)),
        *(("--workers", str(job.nodes - 1)) if job.nodes > 1 else ()),
        *(("--gpu-devices-request", str(job.gpus_per_node)) if job.asks_for == "gpus" else ()),
        "--large-shm",
        *(("--node-pools", job.partition) if job.partition else ()),
        *(("--node-type", job.instance) if job.instance else ()),
        *(("--working-dir", job.workdir) if job.workdir else ()),
        *(("--external-url", f"container={job.port}") if job.port else ()),
    ]
    for mount in job.mounts:
        words += _mount_words(mount_of(mount, "runai", ("path", "pvc")))
    # A failed pod must not start again on its own: the others would wait for a rank that never
    # comes back.
    words += ["--backoff-limit", "0", "--restart-policy", "Never"]
    words += ["--master-restart-policy", "Never"]
    name = dns_label(job, "runai", _MOST_LETTERS)
    return [
        f"runai training pytorch submit {name}",
        *lines_of([*words, *job.words]),
        '--command -- bash -c "$pod"',
    ]


def _mount_words(mount: Mount) -> list[str]:
    if "," in mount.source + mount.target:
        raise ConfigError(
            f"mount {mount.source}:{mount.target}: Run:ai separates the parts of a mount by commas;"
            " there is one in a path"
        )
    if mount.kind == "path":
        mode = "" if mount.read_only else ",readwrite"
        return ["--host-path", f"path={mount.source},mount={mount.target}{mode}"]
    if mount.read_only:
        raise ConfigError(
            f"mount pvc={mount.source}: Run:ai cannot mount an existing claim read only"
        )
    return ["--existing-pvc", f"claimname={mount.source},path={mount.target}"]


def _pod(job: Job) -> str:
    return node_script(
        job,
        rank='"$RANK"',
        address='"$MASTER_ADDR"',
        port='"$MASTER_PORT"',
        before=["exec", *timeout_words(job)],
    )


def _read(out: str, _name: str) -> Seen | None:
    """The first phase of the workload's JSON."""
    found = re.search(r'"(?:phase|currentPhase|status)"\s*:\s*"(\w+)"', out)
    return None if found is None else Seen(word=found[1])


STATES = state_table(
    {
        "queued": "Creating Initializing Resuming Pending",
        "running": "Running Updating Degraded Stopping Terminating Deleting",
        "succeeded": "Completed",
        "failed": "Failed",
        "cancelled": "Stopped",
    }
)
"""Phases of a workload, by Run:ai's documentation of its command line 2."""
_CLIENT = Client(
    name="runai",
    program="runai",
    advice="install Run:ai's command line 2 and log in by `runai login`",
    source=("docs.nvidia.com/run-ai, runai training pytorch submit, describe, logs, delete"),
    status=("runai", "training", "pytorch", "describe", "{name}", "{project}", "-o", "json"),
    read=_read,
    log=("runai", "training", "pytorch", "logs", "{name}", "{project}"),
    cancel=("runai", "training", "pytorch", "suspend", "{name}", "{project}"),
    states=STATES,
)

PLATFORMS = (client_platform(_CLIENT, title="NVIDIA Run:ai", place=50, write=runai_script),)
