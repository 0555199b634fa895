"""A TrainJob of Kubeflow Trainer (version 2)."""

from __future__ import annotations

from typing import Any

from meshwright.platforms.job import Job, JobText, check_fields, dns_label, no_files, way
from meshwright.platforms.kubernetes.pod import (
    KNOWN,
    as_is,
    container,
    env,
    gpu_resources,
    manifest,
    metadata,
    node_command,
    node_selector,
    pod_spec,
    replica,
    volumes,
)
from meshwright.platforms.shell import MASTER_PORT, rank_words, title
from meshwright.values.errors import ConfigError

__all__ = [
    "jobset",
    "mpijob",
    "pytorchjob",
    "trainjob",
]

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


_MPIJOB_MOST_LETTERS = 50
_RANK = 'export RANK="$OMPI_COMM_WORLD_RANK" LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK"; exec "$@"'


def mpijob(job: Job) -> JobText:
    """Write an MPIJob: mpirun starts one process per chip, and Open MPI's numbers become the ones
    that PyTorch reads."""
    platform = "k8s-mpijob"
    check_fields(job, platform, KNOWN)
    way(job, platform, ("ranks",))
    no_files(job, platform)
    name = dns_label(job, platform, _MPIJOB_MOST_LETTERS)
    worker = container(job, platform, name="worker", command=["/usr/sbin/sshd", "-De"])
    # Without chips it may wait on any node, those kept free for pods with chips excepted: hence no
    # choice of nodes, and no mounts.
    launcher = {
        "containers": [
            {"name": "launcher", "image": job.image, "command": _mpirun(job, name), "env": env(job)}
        ]
    }
    limit = {"activeDeadlineSeconds": job.time_limit_s} if job.time_limit_s else {}
    content = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata(job, name),
        "spec": {
            "slotsPerWorker": job.gpus_per_node,
            "mpiImplementation": "OpenMPI",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, **limit},
            "mpiReplicaSpecs": {
                "Launcher": replica(1, launcher),
                "Worker": replica(job.nodes, pod_spec(job, platform, worker)),
            },
        },
    }
    return manifest(
        job,
        content,
        kind="mpijob",
        comment=title(job, "One task per GPU: mpirun starts every process."),
    )


def _mpirun(job: Job, name: str) -> list[str]:
    """A rank starts by ssh, which brings no environment along: `-x` does."""
    names = [word for variable in job.environment for word in ("-x", variable.name)]
    meeting = [
        f"MASTER_ADDR={name}-worker-0.{name}",
        f"MASTER_PORT={MASTER_PORT}",
        f"WORLD_SIZE={job.num_gpus}",
    ]
    words = [
        "mpirun",
        "--allow-run-as-root",
        "-np",
        str(job.num_gpus),
        "--bind-to",
        "none",
        "--map-by",
        "slot",
    ]
    workdir = ["-wdir", *as_is([job.workdir])] if job.workdir else []
    set_here = [word for setting in meeting for word in ("-x", setting)]
    return [
        *words,
        *workdir,
        *names,
        *set_here,
        "bash",
        "-c",
        _RANK,
        "rank",
        *as_is(rank_words(job)),
    ]


_PYTORCHJOB_MOST_LETTERS = 50
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
        "metadata": metadata(job, dns_label(job, platform, _PYTORCHJOB_MOST_LETTERS)),
        "spec": {
            "nprocPerNode": str(job.gpus_per_node),
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": 0, **limit},
            "pytorchReplicaSpecs": replicas,
        },
    }
    return manifest(job, content, kind="pytorchjob", comment=title(job))


_TRAINJOB_MOST_LETTERS = 40
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
        "metadata": metadata(job, dns_label(job, platform, _TRAINJOB_MOST_LETTERS)),
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
