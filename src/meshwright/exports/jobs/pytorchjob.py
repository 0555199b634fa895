"""A PyTorchJob of Kubeflow's Training Operator (version 1)."""

from __future__ import annotations

from typing import Any

from meshwright.exports.jobs._pod import (
    KNOWN,
    container,
    manifest,
    metadata,
    node_command,
    pod_spec,
    replica,
)
from meshwright.exports.jobs._shell import title
from meshwright.exports.jobs._words import check_fields, dns_label, way
from meshwright.exports.jobs.job import Job, JobText

__all__ = ["pytorchjob"]

_MOST_LETTERS = 50
_CONTAINER = "pytorch"
"""The operator insists on this name."""


def pytorchjob(job: Job) -> JobText:
    """Write a PyTorchJob: one master, and workers for the other nodes; the operator sets torchrun's
    PET_ variables."""
    platform = "k8s-pytorchjob"
    check_fields(job, platform, KNOWN)
    way(job, platform, ("torchrun",))
    words = node_command(
        job, rank="$(PET_NODE_RANK)", address="$(PET_MASTER_ADDR)", port="$(PET_MASTER_PORT)"
    )
    spec = pod_spec(job, platform, container(job, platform, name=_CONTAINER, command=words))
    replicas: dict[str, Any] = {"Master": replica(1, spec)}
    if job.nodes > 1:
        replicas["Worker"] = replica(job.nodes - 1, spec)
    limit = {"activeDeadlineSeconds": job.time_limit_s} if job.time_limit_s else {}
    content = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(job, dns_label(job, platform, _MOST_LETTERS)),
        "spec": {
            "nprocPerNode": str(job.gpus_per_node),
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0, **limit},
            "pytorchReplicaSpecs": replicas,
        },
    }
    return manifest(job, content, kind="pytorchjob", comment=title(job))
