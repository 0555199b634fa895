"""A TrainJob of Kubeflow Trainer (version 2)."""

from __future__ import annotations

from typing import Any

from meshwright.errors import ConfigError
from meshwright.exports.jobs._pod import (
    KNOWN,
    as_is,
    env,
    gpu_resources,
    manifest,
    metadata,
    node_command,
    node_selector,
    volumes,
)
from meshwright.exports.jobs._shell import title
from meshwright.exports.jobs._words import check_fields, dns_label, way
from meshwright.exports.jobs.job import Job, JobText

__all__ = ["trainjob"]

_MOST_LETTERS = 40
RUNTIME = "torch-distributed"
"""The runtime for PyTorch that comes with Trainer; it sets torchrun's PET_ variables."""
_MANAGER = "meshwright/export"


def trainjob(job: Job) -> JobText:
    """Write a TrainJob of the runtime `torch-distributed`."""
    platform = "k8s-trainjob"
    check_fields(job, platform, KNOWN)
    way(job, platform, ("torchrun",))
    reserved = [variable.name for variable in job.environment if variable.name.startswith("PET_")]
    if reserved:
        raise ConfigError(
            f"{platform}: {', '.join(reserved)} may not be set, Trainer sets it for torchrun"
        )
    resources = gpu_resources(job, platform)
    trainer: dict[str, Any] = {
        "image": job.image,
        "numNodes": job.nodes,
        "numProcPerNode": job.gpus_per_node,
        "resourcesPerNode": resources,
        "command": _command(job),
    }
    if job.environment:
        trainer["env"] = env(job)
    spec: dict[str, Any] = {
        "runtimeRef": {"kind": "ClusterTrainingRuntime", "name": RUNTIME},
        "trainer": trainer,
    }
    if job.time_limit_s:
        spec["activeDeadlineSeconds"] = job.time_limit_s
    spec["runtimePatches"] = [_patch(job, platform)]
    content = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, dns_label(job, platform, _MOST_LETTERS)),
        "spec": spec,
    }
    return manifest(job, content, kind="trainjob", comment=title(job))


def _command(job: Job) -> list[str]:
    """A TrainJob has no working directory, so bash goes there."""
    words = node_command(
        job, rank="$(PET_NODE_RANK)", address="$(PET_MASTER_ADDR)", port="$(PET_MASTER_PORT)"
    )
    return (
        ["bash", "-c", 'cd -- "$0" && exec "$@"', *as_is([job.workdir]), *words]
        if job.workdir
        else words
    )


def _patch(job: Job, platform: str) -> dict[str, Any]:
    """Return volumes and the choice of nodes, which belong to the runtime and are patched into
    it."""
    outside, inside = volumes(job, platform)
    pod = {
        **node_selector(job),
        "volumes": outside,
        "containers": [{"name": "node", "volumeMounts": inside}],
    }
    nodes = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
    return {
        "manager": _MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": nodes}}},
    }
