"""Pods that run a job on Kubernetes: pieces that its kinds share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from meshwright.platforms.job import Job, JobText, mount_of, required
from meshwright.platforms.shell import STRICT, files, node_words, reasons
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import device_plugin
from meshwright.values.text import write_yaml

__all__ = [
    "KNOWN",
    "as_is",
    "container",
    "env",
    "gpu_resources",
    "manifest",
    "metadata",
    "node_command",
    "node_selector",
    "pod_spec",
    "replica",
    "volumes",
]

KNOWN = ("image", "mounts", "workdir", "partition", "instance")
"""Fields that all kinds have a word for."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
INSTANCE_LABEL = "node.kubernetes.io/instance-type"
IMAGE = "nvcr.io/nvidia/pytorch:25.04-py3"
_SHM = "shm"


def as_is(words: Sequence[str]) -> list[str]:
    """Return words that a container gets unchanged: Kubernetes reads `$$` as `$` and replaces
    `$(NAME)` in commands and values."""
    return [re.sub(r"\$(?=[$(])", "$$", word) for word in words]


def env(job: Job) -> list[dict[str, str]]:
    """Return the environment of a container."""
    return [
        {"name": variable.name, "value": as_is([variable.value])[0]} for variable in job.environment
    ]


def gpu_resources(job: Job, platform: str) -> dict[str, Any]:
    """Return the chips of one node; extended resources are asked for by their limit."""
    required(job, platform, "image", IMAGE)
    if job.asks_for == "nodes":
        return {}
    return {"limits": {device_plugin(job.vendor).kubernetes_resource: str(job.gpus_per_node)}}


def volumes(job: Job, platform: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes of a pod and their places in a container; NCCL needs more shared memory
    than the 64 MiB of a container."""
    outside: list[dict[str, Any]] = [{"name": _SHM, "emptyDir": {"medium": "Memory"}}]
    inside: list[dict[str, Any]] = [{"name": _SHM, "mountPath": "/dev/shm"}]
    for number, mount in enumerate(job.mounts):
        name = f"mount-{number}"
        mount_of(mount, platform, ("path", "pvc"))
        if ":" in mount.target:
            raise ConfigError(
                f"mount {mount.source}:{mount.target}: Kubernetes takes no colon in a path of a"
                " container"
            )
        claim = {"persistentVolumeClaim": {"claimName": mount.source}}
        outside.append(
            {
                "name": name,
                **(claim if mount.kind == "pvc" else {"hostPath": {"path": mount.source}}),
            }
        )
        inside.append(
            {
                "name": name,
                "mountPath": mount.target,
                **({"readOnly": True} if mount.read_only else {}),
            }
        )
    return outside, inside


def node_selector(job: Job) -> dict[str, Any]:
    """Return the choice of nodes, where one is made."""
    return {"nodeSelector": {INSTANCE_LABEL: job.instance}} if job.instance else {}


def container(job: Job, platform: str, *, name: str, command: Sequence[str]) -> dict[str, Any]:
    """Return the container of a training pod; the command is final."""
    resources = gpu_resources(job, platform)
    found: dict[str, Any] = {"name": name, "image": job.image, "command": list(command)}
    if job.workdir:
        found["workingDir"] = job.workdir
    if job.environment:
        found["env"] = env(job)
    if job.port:
        found["ports"] = [{"containerPort": job.port}]
    return {**found, "resources": resources, "volumeMounts": volumes(job, platform)[1]}


def pod_spec(job: Job, platform: str, container: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with one container."""
    return {**node_selector(job), "containers": [container], "volumes": volumes(job, platform)[0]}


def replica(count: int, spec: dict[str, Any]) -> dict[str, Any]:
    """Return pods of one role, as Kubeflow's operators take them: the restart policy stands beside
    the template."""
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}


def metadata(job: Job, name: str) -> dict[str, Any]:
    """Return name and queue."""
    return {"name": name, **({"labels": {QUEUE_LABEL: job.partition}} if job.partition else {})}


def node_command(
    job: Job, *, rank: str, address: str, port: str, options: Sequence[str] = ()
) -> list[str]:
    """Return what one node runs: torchrun, or the program with its place in the environment where
    it starts its ranks itself."""
    before = (
        ["bash", "-c", *as_is([f'{STRICT}\n{files(job)}\nexec "$@"']), "start"] if job.files else []
    )
    if job.runs_on == "node":
        return [
            *before,
            "env",
            *node_words(job, rank=rank, address=address, port=port),
            *as_is(job.command),
        ]
    return [
        *before,
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.gpus_per_node}",
        *options,
        *as_is(job.command),
    ]


def manifest(job: Job, content: dict[str, Any], *, kind: str, comment: str) -> JobText:
    """Return the file; the reasons of the environment stand at its head, as a pod has no place for
    them."""
    file_name = f"job.{kind}.yaml"
    submit = f"kubectl create -f {file_name}"
    lines = [comment, f"# Submit it: {submit}", *([reasons(job)] if job.environment else [])]
    return JobText(
        file_name=file_name, text="\n".join([*lines, write_yaml(content)]), submit=submit
    )
