"""Job scripts: text that starts a program on every chip of some nodes, a pure function of a frozen
job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshwright.errors import UnknownNameError
from meshwright.exports.jobs.base_command import base_command_script
from meshwright.exports.jobs.job import Job, JobText, Launch, Mount, parse_mount
from meshwright.exports.jobs.jobset import jobset
from meshwright.exports.jobs.lepton import lepton_script
from meshwright.exports.jobs.mpijob import mpijob
from meshwright.exports.jobs.node_script import Copy, on_nodes
from meshwright.exports.jobs.options import JobOptions, job_of
from meshwright.exports.jobs.pai_dlc import pai_dlc_job
from meshwright.exports.jobs.pytorchjob import pytorchjob
from meshwright.exports.jobs.runai import runai_script
from meshwright.exports.jobs.sky import sky_task
from meshwright.exports.jobs.slurm import array_script, slurm_script
from meshwright.exports.jobs.torchrun import torchrun_script
from meshwright.exports.jobs.trainjob import trainjob

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
