"""Executors: one for each launcher that runs are started on; docs/launchers.md says how each reads
states."""

from __future__ import annotations

from meshwright.runs.executors.base_command import BaseCommandExecutor
from meshwright.runs.executors.executor import Executor, JobState, JobStatus, check_label
from meshwright.runs.executors.kubernetes import KubernetesExecutor
from meshwright.runs.executors.local import LocalExecutor
from meshwright.runs.executors.options import (
    BaseCommandOptions,
    KubernetesOptions,
    LocalOptions,
    SlurmOptions,
)
from meshwright.runs.executors.registry import EXECUTORS, executor
from meshwright.runs.executors.slurm import ArrayRun, SlurmExecutor

__all__ = [
    "EXECUTORS",
    "ArrayRun",
    "BaseCommandExecutor",
    "BaseCommandOptions",
    "Executor",
    "JobState",
    "JobStatus",
    "KubernetesExecutor",
    "KubernetesOptions",
    "LocalExecutor",
    "LocalOptions",
    "SlurmExecutor",
    "SlurmOptions",
    "check_label",
    "executor",
]
