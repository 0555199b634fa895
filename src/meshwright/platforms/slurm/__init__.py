"""Slurm: batch scripts, and the commands of its controller."""

from __future__ import annotations

from meshwright.platforms.contract import Platform
from meshwright.platforms.slurm.executor import STATES, SlurmExecutor, SlurmOptions
from meshwright.platforms.slurm.script import slurm_script

__all__ = ["PLATFORMS"]

PLATFORMS = (
    Platform(
        name="slurm",
        title="Slurm",
        place=20,
        write=slurm_script,
        without_gpus=True,
        needs="sbatch, squeue, scancel and scontrol, and a file system that all nodes see",
        start=SlurmExecutor,
        options=SlurmOptions,
        states=STATES,
        limit="#SBATCH --time={time}",
        form="days-hours:minutes:seconds",
        sees_here=True,
        chains=True,
        caveats=("Slurm counts minutes and ends a job up to half a minute late",),
    ),
)
