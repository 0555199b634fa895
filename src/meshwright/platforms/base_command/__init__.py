"""NVIDIA Base Command Platform, by NGC CLI up to 4.19.1: jobs, and the storage they mount."""

from __future__ import annotations

from meshwright.platforms.base_command.allocation import (
    AllocationOptions,
    BcprunExecutor,
    bcprun_script,
)
from meshwright.platforms.base_command.executor import (
    STATES,
    BaseCommandExecutor,
    BaseCommandOptions,
)
from meshwright.platforms.base_command.script import base_command_script
from meshwright.platforms.contract import Platform
from meshwright.platforms.local.executor import STATES as ENDS

__all__ = ["PLATFORMS"]

PLATFORMS = (
    Platform(
        name="bcp",
        title="NVIDIA Base Command Platform",
        place=40,
        write=base_command_script,
        without_gpus=True,
        needs="NGC CLI 4.19.1 or earlier, set up by `ngc config set`",
        start=BaseCommandExecutor,
        options=BaseCommandOptions,
        states=STATES,
        limit="--total-runtime {time}",
        form="nDnHnMnS",
        caveats=(
            "--total-runtime is a graceful stop: the job is told to end, and killed later",
            "NeMo's run.time_limit does nothing on Base Command; the limit above is the platform's"
            " own",
        ),
    ),
    Platform(
        name="bcprun",
        title="a job of Base Command that you are in",
        place=41,
        write=bcprun_script,
        without_gpus=True,
        needs="bcprun and NGC_ARRAY_SIZE, which a job of Base Command has",
        start=BcprunExecutor,
        options=AllocationOptions,
        states=ENDS,
        limit="its watcher ends it after {time} s",
        sees_here=True,
    ),
)
