"""This machine: torchrun under a watcher, or a script that is started by hand on every node."""

from __future__ import annotations

from meshwright.platforms.contract import Platform
from meshwright.platforms.local.executor import STATES, LocalExecutor, LocalOptions
from meshwright.platforms.local.script import torchrun_script

__all__ = ["PLATFORMS"]

PLATFORMS = (
    Platform(
        name="torchrun",
        runs_as="local",
        title="this machine",
        place=10,
        write=torchrun_script,
        needs="torchrun, which comes with PyTorch",
        start=LocalExecutor,
        options=LocalOptions,
        states=STATES,
        limit="its watcher ends it after {time} s",
        sees_here=True,
    ),
)
