"""A JobSet of Kubernetes SIGs: one indexed Job, one pod per node."""

from __future__ import annotations

from typing import Any

from meshwright.exports.jobs._pod import (
    KNOWN,
    container,
    manifest,
    metadata,
    node_command,
    pod_spec,
)
from meshwright.exports.jobs._shell import MASTER_PORT, title
from meshwright.exports.jobs._words import check_fields, dns_label, way
from meshwright.exports.jobs.job import Job, JobText

__all__ = ["jobset"]

_MOST_LETTERS = 40
"""A pod is called NAME-node-0-INDEX-xxxxx, in at most 63 letters."""
_JOB = "node"


def jobset(job: Job) -> JobText:
    """Write a JobSet. Its pods find the first one by the name that JobSet gives it, and their rank
    in the index of their Job."""
    platform = "k8s-jobset"
    check_fields(job, platform, (*KNOWN, "port"))
    way(job, platform, ("torchrun",))
    name = dns_label(job, platform, _MOST_LETTERS)
    # Kubernetes itself puts the value of $(JOB_COMPLETION_INDEX) here.
    rank, address, port = "$(JOB_COMPLETION_INDEX)", f"{name}-{_JOB}-0-0.{name}", str(MASTER_PORT)
    where = [f"--node-rank={rank}", f"--master-addr={address}", f"--master-port={port}"]
    words = node_command(job, rank=rank, address=address, port=port, options=where)
    limit = {"activeDeadlineSeconds": job.time_limit_s} if job.time_limit_s else {}
    indexed: dict[str, Any] = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **limit,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                **pod_spec(job, platform, container(job, platform, name=_JOB, command=words)),
            }
        },
    }
    content = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, name),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": indexed}}],
        },
    }
    return manifest(job, content, kind="jobset", comment=title(job))
