"""NVIDIA Base Command Platform, by NGC CLI up to 4.19.1: jobs, and the storage they mount."""

from __future__ import annotations

from meshwright.platforms.base_command.executor import (
    STATES,
    BaseCommandExecutor,
    BaseCommandOptions,
)
from meshwright.platforms.base_command.script import base_command_script
from meshwright.platforms.contract import Platform

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
)
