"""Kubernetes: a platform for each kind of job, by the operator that runs it."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.platforms.contract import Platform
from meshwright.platforms.job import Job, JobText
from meshwright.platforms.kubernetes.executor import (
    KubernetesExecutor,
    KubernetesKind,
    KubernetesOptions,
)
from meshwright.platforms.kubernetes.manifests import jobset, mpijob, pytorchjob, trainjob
from meshwright.platforms.kubernetes.states import CONDITIONS

__all__ = ["PLATFORMS"]


def _of_kind(
    place: int, kind: KubernetesKind, title: str, write: Callable[[Job], JobText], operator: str
) -> Platform:
    """Return the platform of one kind; `k8s` is the usual one, whose kind is an option."""
    usual = kind == KubernetesOptions().kind
    return Platform(
        name=f"k8s-{kind}",
        runs_as="k8s" if usual else None,
        title=f"Kubernetes, {title}",
        place=place,
        write=write,
        without_gpus=kind == "jobset",
        needs=f"pip install 'meshwright[k8s]', kubectl's configuration, and {operator}",
        start=KubernetesExecutor,
        options=KubernetesOptions,
        fixed={} if usual else {"kind": kind},
        states=CONDITIONS,
        limit="activeDeadlineSeconds: {time}",
    )


PLATFORMS = (
    _of_kind(30, "trainjob", "TrainJob", trainjob, "Kubeflow Trainer 2"),
    _of_kind(31, "pytorchjob", "PyTorchJob", pytorchjob, "Kubeflow's training operator 1"),
    _of_kind(32, "jobset", "JobSet", jobset, "JobSet"),
    _of_kind(33, "mpijob", "MPIJob", mpijob, "Kubeflow's MPI operator"),
)
