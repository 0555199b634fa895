"""An MPIJob of Kubeflow's MPI Operator: a launcher without chips, and one pod per node, in images
with Open MPI and sshd."""

from __future__ import annotations

from meshwright.exports.jobs._pod import (
    KNOWN,
    as_is,
    container,
    env,
    manifest,
    metadata,
    pod_spec,
    replica,
)
from meshwright.exports.jobs._shell import MASTER_PORT, rank_words, title
from meshwright.exports.jobs._words import check_fields, dns_label, no_files, way
from meshwright.exports.jobs.job import Job, JobText

__all__ = ["mpijob"]

_MOST_LETTERS = 50
_RANK = 'export RANK="$OMPI_COMM_WORLD_RANK" LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK"; exec "$@"'


def mpijob(job: Job) -> JobText:
    """Write an MPIJob: mpirun starts one process per chip, and Open MPI's numbers become the ones
    that PyTorch reads."""
    platform = "k8s-mpijob"
    check_fields(job, platform, KNOWN)
    way(job, platform, ("ranks",))
    no_files(job, platform)
    name = dns_label(job, platform, _MOST_LETTERS)
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
