"""Job scripts: text that starts a program on every chip of some nodes, a pure function of a frozen
job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshwright.platforms.base_command.script import base_command_script
from meshwright.platforms.job import Job, JobOptions, JobText, Launch, Mount, job_of, parse_mount
from meshwright.platforms.kubernetes.manifests import jobset, mpijob, pytorchjob, trainjob
from meshwright.platforms.lepton import lepton_script
from meshwright.platforms.local.script import torchrun_script
from meshwright.platforms.pai_dlc import pai_dlc_job
from meshwright.platforms.runai import runai_script
from meshwright.platforms.shell import Copy, on_nodes
from meshwright.platforms.sky import sky_task
from meshwright.platforms.slurm.script import array_script, slurm_script
from meshwright.values.errors import UnknownNameError

__all__ = [
    "LAUNCHERS",
    "WITHOUT_GPUS",
    "Copy",
    "Job",
    "JobOptions",
    "JobText",
    "Launch",
    "Mount",
    "array_script",
    "job_of",
    "job_text",
    "on_nodes",
    "parse_mount",
]

LAUNCHERS: Mapping[str, Callable[[Job], JobText]] = MappingProxyType(
    {
        "torchrun": torchrun_script,
        "slurm": slurm_script,
        "k8s-trainjob": trainjob,
        "k8s-pytorchjob": pytorchjob,
        "k8s-jobset": jobset,
        "k8s-mpijob": mpijob,
        "bcp": base_command_script,
        "runai": runai_script,
        "lepton": lepton_script,
        "sky": sky_task,
        "pai-dlc": pai_dlc_job,
    }
)
"""Every platform that a job can be written for."""
WITHOUT_GPUS = ("slurm", "k8s-jobset", "bcp", "runai", "lepton", "sky", "pai-dlc")
"""Those on which a process per node knows its number without torchrun, MPI or GPUs."""


def job_text(job: Job, *, launcher: str) -> JobText:
    """Write a job for a platform; UnknownNameError where there is none of that name, for none
    stands in for another."""
    if launcher not in LAUNCHERS:
        raise UnknownNameError("launcher", launcher, LAUNCHERS)
    if job.asks_for == "nodes" and launcher not in WITHOUT_GPUS:
        raise UnknownNameError("launcher of jobs without GPUs", launcher, WITHOUT_GPUS)
    return LAUNCHERS[launcher](job)
