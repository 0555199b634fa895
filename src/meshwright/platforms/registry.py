"""Executors by the names of their launchers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from meshwright.platforms.base_command.executor import BaseCommandExecutor
from meshwright.platforms.executor import Executor
from meshwright.platforms.kubernetes.executor import KubernetesExecutor
from meshwright.platforms.local.executor import LocalExecutor
from meshwright.platforms.options import (
    BaseCommandOptions,
    KubernetesOptions,
    LocalOptions,
    SlurmOptions,
)
from meshwright.platforms.slurm.executor import SlurmExecutor
from meshwright.values.errors import UnknownNameError

__all__ = [
    "EXECUTORS",
    "executor",
]

EXECUTORS: Mapping[str, tuple[Callable[[Any], Executor], Any]] = MappingProxyType(
    {
        "local": (LocalExecutor, LocalOptions),
        "slurm": (SlurmExecutor, SlurmOptions),
        "k8s": (KubernetesExecutor, KubernetesOptions),
        "bcp": (BaseCommandExecutor, BaseCommandOptions),
    }
)
"""Each launcher that runs can be started on, and the options that it takes."""


def executor(launcher: str, **options: Any) -> Executor:
    """Return the executor of a launcher; UnknownNameError for a launcher or an option that does not
    exist, with the nearest."""
    if launcher not in EXECUTORS:
        raise UnknownNameError("launcher", launcher, EXECUTORS)
    make, kind = EXECUTORS[launcher]
    known = [field.name for field in fields(kind)]
    for name in options:
        if name not in known:
            raise UnknownNameError(f"option of the launcher {launcher}", name, known)
    return make(kind(**options))
