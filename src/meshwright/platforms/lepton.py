"""A batch job of NVIDIA DGX Cloud Lepton, by its command `lep`."""

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
    required,
    way,
)
from meshwright.platforms.shell import MASTER_PORT, lines_of, node_script, submitting, timeout_words
from meshwright.values.errors import ConfigError

__all__ = ["PLATFORMS", "lepton_script"]

_MOST_LETTERS = 50
_LOCAL = "node-local"
"""Lepton's word for a path of the node itself."""


def lepton_script(job: Job) -> JobText:
    """Write a script that creates a job; `timeout` stops it, as Lepton has no limit on time."""
    check_fields(
        job,
        "lepton",
        ("image", "mounts", "workdir", "partition", "instance", "port", "words", "secrets"),
    )
    way(job, "lepton", ("torchrun",))
    return submitting(job, _submit(job), variable="worker", who="worker", text=_worker(job))


def _submit(job: Job) -> list[str]:
    words = [
        *("--name", dns_label(job, "lepton", _MOST_LETTERS)),
        *("--container-image", required(job, "lepton", "image", IMAGE)),
        *("--resource-shape", required(job, "lepton", "instance", "gpu.8xh100-sxm")),
        *("--num-workers", str(job.nodes)),
        *(("--node-group", job.partition) if job.partition else ()),
        *(("--container-port", f"{job.port}:tcp") if job.port else ()),
    ]
    for mount in job.mounts:
        words += ["--mount", _mount_word(mount)]
    for name in job.secrets:  # a secret of the workspace, by its own name
        words += ["--secret", name]
    return ["lep job create", *lines_of([*words, *job.words]), '--command "$worker"']


def _mount_word(mount: Mount) -> str:
    """Return FROM:TO:VOLUME; `node-nfs:NAME=/from:/to` names a volume of the node group."""
    volume = _LOCAL if mount.kind == "path" else mount.kind
    if not volume.startswith("node-") or not mount.source.startswith("/") or ":" in mount.source:
        expected = "an absolute path, or node-TYPE:NAME=/path for a volume of the node group"
        raise ConfigError(f"mount {mount.kind}={mount.source}: lepton expects {expected}")
    if mount.read_only:
        raise ConfigError(f"mount {mount.source}:{mount.target}: lepton cannot mount read only")
    return f"{mount.source}:{mount.target}:{volume}"


def _worker(job: Job) -> str:
    meeting = (
        "# The first worker's name, as Lepton makes"
        " it.\nMASTER_ADDR=${LEPTON_JOB_WORKER_PREFIX}-0.${LEPTON_SUBDOMAIN}"
    )
    return node_script(
        job,
        rank='"$LEPTON_JOB_WORKER_INDEX"',
        address='"$MASTER_ADDR"',
        port=str(MASTER_PORT),
        before=["exec", *timeout_words(job)],
        meeting=meeting,
        workdir=job.workdir,
    )


def _read(out: str, _name: str) -> Seen | None:
    """The state of the job's JSON, behind a line of words."""
    state, job_id = (re.search(rf'"{name}"\s*:\s*"([^"]+)"', out) for name in ("state", "id"))
    if state is None:
        return None
    return Seen(word=state[1], job_id=None if job_id is None else job_id[1])


STATES = state_table(
    {
        "queued": "Queueing Awaiting Starting PendingRetry",
        "running": "Running Restarting Stopping Terminating Deleting",
        "succeeded": "Completed",
        "failed": "Failed",
        "cancelled": "Stopped Deleted",
    }
)
"""States of a job, leptonai 0.47.1."""
_CLIENT = Client(
    name="lepton",
    program="lep",
    advice="pip install leptonai, and log in by `lep login`",
    source="leptonai 0.47.1, cli/job.py and cli/log.py",
    status=("lep", "job", "get", "--name", "{name}", "--include-archived"),
    read=_read,
    log=("lep", "log", "get", "--job-name", "{name}", "--without-timestamp"),
    cancel=("lep", "job", "stop", "--id", "{id}"),
    states=STATES,
)

PLATFORMS = (
    client_platform(_CLIENT, title="NVIDIA DGX Cloud Lepton", place=60, write=lepton_script),
)
