"""A job of Kubernetes as a TrainJob, JobSet, PyTorchJob or MPIJob, and the pods that run it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from meshwright.platforms.job import (
    IMAGE,
    SECRETS_OF,
    Job,
    JobText,
    check_fields,
    dns_label,
    mount_of,
    no_files,
    required,
    way,
)
from meshwright.platforms.shell import (
    MASTER_PORT,
    STRICT,
    files,
    node_words,
    rank_words,
    reasons,
    title,
)
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import device_plugin
from meshwright.values.text import write_yaml

__all__ = ["as_is", "jobset", "mpijob", "pytorchjob", "trainjob"]

_KNOWN = ("image", "mounts", "workdir", "partition", "instance", "secrets")
"""Fields that all kinds have a word for."""
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_INSTANCE_LABEL = "node.kubernetes.io/instance-type"
_SHM = "shm"


_MOST_LETTERS = MappingProxyType({"TrainJob": 40, "JobSet": 40, "PyTorchJob": 50, "MPIJob": 50})
"""Of a job's name: a pod is called NAME-node-0-INDEX-xxxxx, in at most 63 letters."""
_JOB = "node"


def jobset(job: Job) -> JobText:
    """Write a JobSet; its pods find the first by its name, and their rank in their Job's index."""
    platform = "k8s-jobset"
    check_fields(job, platform, (*_KNOWN, "port"))
    way(job, platform, ("torchrun",))
    name = _name(job, "JobSet")
    # Kubernetes itself puts the value of $(JOB_COMPLETION_INDEX) here.
    rank, address, port = "$(JOB_COMPLETION_INDEX)", f"{name}-{_JOB}-0-0.{name}", str(MASTER_PORT)
    where = [f"--node-rank={rank}", f"--master-addr={address}", f"--master-port={port}"]
    words = _node_command(job, rank=rank, address=address, port=port, options=where)
    pod = _pod_spec(job, platform, _container(job, platform, name=_JOB, command=words))
    indexed: dict[str, Any] = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **_limit(job),
        "template": {"spec": {"restartPolicy": "Never", **pod}},
    }
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": indexed}}],
    }
    return _manifest(job, spec, "JobSet", api="jobset.x-k8s.io/v1alpha2")


_RANK = 'export RANK="$OMPI_COMM_WORLD_RANK" LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK"; exec "$@"'


def mpijob(job: Job) -> JobText:
    """Write an MPIJob: mpirun starts one process per chip; Open MPI's numbers are PyTorch's."""
    platform = "k8s-mpijob"
    check_fields(job, platform, _KNOWN)
    way(job, platform, ("ranks",))
    no_files(job, platform)
    name = _name(job, "MPIJob")
    worker = _container(job, platform, name="worker", command=["/usr/sbin/sshd", "-De"])
    # Without chips it may wait on any node, those kept free for pods with chips excepted: hence no
    # choice of nodes, and no mounts.
    first = {"name": "launcher", "image": job.image, "command": _mpirun(job, name)}
    launcher = {"containers": [{**first, "env": _env(job)}]}
    spec = {
        "slotsPerWorker": job.gpus_per_node,
        "mpiImplementation": "OpenMPI",
        "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, **_limit(job)},
        "mpiReplicaSpecs": {
            "Launcher": _replica(1, launcher),
            "Worker": _replica(job.nodes, _pod_spec(job, platform, worker)),
        },
    }
    how = "One task per GPU: mpirun starts every process."
    return _manifest(job, spec, "MPIJob", api="kubeflow.org/v2beta1", how=how)


def _mpirun(job: Job, name: str) -> list[str]:
    """A rank starts by ssh, which brings no environment along: `-x` does."""
    own = [*(variable.name for variable in job.environment), *job.secrets]
    names = [word for name in own for word in ("-x", name)]
    meeting = [f"MASTER_ADDR={name}-worker-0.{name}", f"MASTER_PORT={MASTER_PORT}"]
    meeting += [f"WORLD_SIZE={job.num_gpus}"]
    words = ["mpirun", "--allow-run-as-root", "-np", str(job.num_gpus)]
    words += ["--bind-to", "none", "--map-by", "slot"]
    words += ["-wdir", *as_is([job.workdir])] if job.workdir else []
    set_here = [word for setting in meeting for word in ("-x", setting)]
    return [*words, *names, *set_here, "bash", "-c", _RANK, "rank", *as_is(rank_words(job))]


_PET = MappingProxyType(
    {"rank": "$(PET_NODE_RANK)", "address": "$(PET_MASTER_ADDR)", "port": "$(PET_MASTER_PORT)"}
)
"""Torchrun's variables, which an operator sets."""
_CONTAINER = "pytorch"
"""The operator insists on this name."""


def pytorchjob(job: Job) -> JobText:
    """Write a PyTorchJob, one master and workers; its operator sets torchrun's PET_ variables."""
    platform = "k8s-pytorchjob"
    check_fields(job, platform, _KNOWN)
    way(job, platform, ("torchrun",))
    words = _node_command(job, **_PET)
    spec = _pod_spec(job, platform, _container(job, platform, name=_CONTAINER, command=words))
    replicas: dict[str, Any] = {"Master": _replica(1, spec)}
    if job.nodes > 1:
        replicas["Worker"] = _replica(job.nodes - 1, spec)
    content = {
        "nprocPerNode": str(job.gpus_per_node),
        "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0, **_limit(job)},
        "pytorchReplicaSpecs": replicas,
    }
    return _manifest(job, content, "PyTorchJob", api="kubeflow.org/v1")


RUNTIME = "torch-distributed"
"""The runtime for PyTorch that comes with Trainer; it sets torchrun's PET_ variables."""
_MANAGER = "meshwright/export"


def trainjob(job: Job) -> JobText:
    """Write a TrainJob of the runtime `torch-distributed`."""
    platform = "k8s-trainjob"
    check_fields(job, platform, _KNOWN)
    way(job, platform, ("torchrun",))
    reserved = [variable.name for variable in job.environment if variable.name.startswith("PET_")]
    if reserved:
        raise ConfigError(
            f"{platform}: {', '.join(reserved)} may not be set, Trainer sets it for torchrun"
        )
    trainer: dict[str, Any] = {
        "image": job.image,
        "numNodes": job.nodes,
        "numProcPerNode": job.gpus_per_node,
        "resourcesPerNode": _gpu_resources(job, platform),
        "command": _command(job),
    }
    if job.environment or job.secrets:
        trainer["env"] = _env(job)
    spec: dict[str, Any] = {
        "runtimeRef": {"kind": "ClusterTrainingRuntime", "name": RUNTIME},
        "trainer": trainer,
        **_limit(job),
        "runtimePatches": [_patch(job, platform)],
    }
    return _manifest(job, spec, "TrainJob", api="trainer.kubeflow.org/v1alpha1")


def _command(job: Job) -> list[str]:
    """A TrainJob has no working directory, so bash goes there."""
    words = _node_command(job, **_PET)
    if not job.workdir:
        return words
    return ["bash", "-c", 'cd -- "$0" && exec "$@"', *as_is([job.workdir]), *words]


def _patch(job: Job, platform: str) -> dict[str, Any]:
    """Return volumes and the choice of nodes, which are patched into the runtime."""
    outside, inside = _volumes(job, platform)
    mounts = [{"name": "node", "volumeMounts": inside}]
    pod = {**_node_selector(job), "volumes": outside, "containers": mounts}
    nodes = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
    patched = {"template": {"spec": {"replicatedJobs": nodes}}}
    return {"manager": _MANAGER, "trainingRuntimeSpec": patched}


def as_is(words: Sequence[str]) -> list[str]:
    """Return words that a container gets unchanged: `$$` reads as `$`, `$(NAME)` is replaced."""
    return [re.sub(r"\$(?=[$(])", "$$", word) for word in words]


def _env(job: Job) -> list[dict[str, Any]]:
    """Return the environment of a container."""
    plain: list[dict[str, Any]] = [
        {"name": variable.name, "value": as_is([variable.value])[0]} for variable in job.environment
    ]
    kept = {"name": SECRETS_OF}
    return plain + [
        {"name": name, "valueFrom": {"secretKeyRef": {**kept, "key": name}}} for name in job.secrets
    ]


def _gpu_resources(job: Job, platform: str) -> dict[str, Any]:
    """Return the chips of one node; extended resources are asked for by their limit."""
    required(job, platform, "image", IMAGE)
    if job.asks_for == "nodes":
        return {}
    return {"limits": {device_plugin(job.vendor).kubernetes_resource: str(job.gpus_per_node)}}


def _volumes(job: Job, platform: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
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
        path = {"hostPath": {"path": mount.source}}
        outside.append({"name": name, **(claim if mount.kind == "pvc" else path)})
        mode = {"readOnly": True} if mount.read_only else {}
        inside.append({"name": name, "mountPath": mount.target, **mode})
    return outside, inside


def _node_selector(job: Job) -> dict[str, Any]:
    """Return the choice of nodes, where one is made."""
    return {"nodeSelector": {_INSTANCE_LABEL: job.instance}} if job.instance else {}


def _container(job: Job, platform: str, *, name: str, command: Sequence[str]) -> dict[str, Any]:
    """Return the container of a training pod; the command is final."""
    resources = _gpu_resources(job, platform)
    found: dict[str, Any] = {"name": name, "image": job.image, "command": list(command)}
    if job.workdir:
        found["workingDir"] = job.workdir
    if job.environment or job.secrets:
        found["env"] = _env(job)
    if job.port:
        found["ports"] = [{"containerPort": job.port}]
    return {**found, "resources": resources, "volumeMounts": _volumes(job, platform)[1]}


def _pod_spec(job: Job, platform: str, container: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with one container."""
    return {**_node_selector(job), "containers": [container], "volumes": _volumes(job, platform)[0]}


def _replica(count: int, spec: dict[str, Any]) -> dict[str, Any]:
    """Return pods of one role; Kubeflow has the restart policy beside the template."""
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": spec}}


def _node_command(
    job: Job, *, rank: str, address: str, port: str, options: Sequence[str] = ()
) -> list[str]:
    """Return what one node runs: torchrun, or a program that starts its ranks itself."""
    files_first = f'{STRICT}\n{files(job)}\nexec "$@"'
    before = ["bash", "-c", *as_is([files_first]), "start"] if job.files else []
    if job.runs_on == "node":
        where = node_words(job, rank=rank, address=address, port=port)
        return [*before, "env", *where, *as_is(job.command)]
    sizes = [f"--nnodes={job.nodes}", f"--nproc-per-node={job.gpus_per_node}"]
    return [*before, "torchrun", *sizes, *options, *as_is(job.command)]


def _secret_lines(job: Job) -> list[str]:
    """Say how the secret comes into being, by names: its values are in your shell alone."""
    if not job.secrets:
        return []
    pairs = " ".join(f'"{name}=${name}"' for name in job.secrets)
    return [
        f"# The secret {SECRETS_OF} holds {', '.join(job.secrets)}. Make it once, from your shell:",
        f"#   printf '%s\\n' {pairs} |",
        f"#     kubectl create secret generic {SECRETS_OF} --from-env-file=/dev/stdin",
    ]


def _limit(job: Job) -> dict[str, Any]:
    return {"activeDeadlineSeconds": job.time_limit_s} if job.time_limit_s else {}


def _name(job: Job, kind: str) -> str:
    return dns_label(job, f"k8s-{kind.lower()}", _MOST_LETTERS[kind])


def _manifest(job: Job, spec: dict[str, Any], kind: str, *, api: str, how: str = "") -> JobText:
    """Return the file, with the reasons of the environment at its head."""
    labels = {"labels": {_QUEUE_LABEL: job.partition}} if job.partition else {}
    metadata = {"name": _name(job, kind), **labels}
    content = {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}
    file_name = f"job.{kind.lower()}.yaml"
    submit = f"kubectl create -f {file_name}"
    lines = [title(job, how), f"# Submit it: {submit}"]
    lines += [reasons(job)] if job.environment else []
    lines += _secret_lines(job)
    text = "\n".join([*lines, write_yaml(content)])
    return JobText(file_name=file_name, text=text, submit=submit)
