"""Where a training is started: one row for each launcher, with the form of its limit on time and
what it can't do."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import UnknownNameError
from meshwright.training.limits import TimeForm

__all__ = ["PLATFORMS", "Platform", "find_platform"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One launcher."""

    name: str
    script: str
    """The platform of `meshwright export --launcher` that writes its job."""
    limit: str
    """Where the limit on time stands; {time} is it in the platform's form."""
    form: TimeForm
    sees_here: bool = False
    """Whether a job without a container sees the paths of the machine that submits it."""
    copies_paths: bool = False
    """Whether a path that is mounted is a copy on each node, gone with it; buckets are mounted."""
    chains: bool = False
    """Whether the platform itself starts a job when another has ended."""
    caveats: tuple[str, ...] = ()
    """Of limits and of what can't be followed."""


_OWN_TIMEOUT = (
    "the platform has no limit on time: coreutils' timeout around the program ends it, in every"
    " node by its own clock"
)
_TELLS_LITTLE = (
    "it tells no exit code, keeps no stderr apart, and a job that its limit ended reads as failed"
)
PLATFORMS: tuple[Platform, ...] = (
    Platform(
        name="local",
        script="torchrun",
        limit="its watcher ends it after {time} s",
        form="seconds",
        sees_here=True,
    ),
    Platform(
        name="slurm",
        script="slurm",
        limit="#SBATCH --time={time}",
        form="days-hours:minutes:seconds",
        sees_here=True,
        chains=True,
        caveats=("Slurm counts minutes and ends a job up to half a minute late",),
    ),
    Platform(
        name="k8s", script="k8s-trainjob", limit="activeDeadlineSeconds: {time}", form="seconds"
    ),
    Platform(
        name="bcp",
        script="bcp",
        limit="--total-runtime {time}",
        form="nDnHnMnS",
        caveats=(
            "--total-runtime is a graceful stop: the job is told to end, and killed later",
            (
                "NeMo's run.time_limit does nothing on Base Command; the limit above is the"
                " platform's own"
            ),
        ),
    ),
    Platform(
        name="runai",
        script="runai",
        limit="timeout {time}",
        form="seconds",
        caveats=(_OWN_TIMEOUT, _TELLS_LITTLE),
    ),
    Platform(
        name="lepton",
        script="lepton",
        limit="timeout {time}",
        form="seconds",
        caveats=(_OWN_TIMEOUT, _TELLS_LITTLE),
    ),
    Platform(
        name="sky",
        script="sky",
        limit="timeout {time}",
        form="seconds",
        copies_paths=True,
        caveats=(_OWN_TIMEOUT, _TELLS_LITTLE),
    ),
)
"""In the order of help. Sources: docs/jobs.md; SkyPilot, Run:ai and Lepton have no option of that
kind."""


def find_platform(name: str) -> Platform:
    """Return a row; UnknownNameError with the nearest names."""
    for row in PLATFORMS:
        if row.name == name:
            return row
    raise UnknownNameError("launcher", name, [row.name for row in PLATFORMS])
