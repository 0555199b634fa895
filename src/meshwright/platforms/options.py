"""What a user says to a launcher's executor beyond the jobs themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from meshwright.platforms.job import Job
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "BaseCommandOptions",
    "KubernetesKind",
    "KubernetesOptions",
    "LocalOptions",
    "SlurmOptions",
    "with_defaults",
]

KubernetesKind = Literal["trainjob", "pytorchjob", "jobset", "mpijob"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalOptions:
    """This machine."""

    devices: tuple[int, ...] | None = None
    """GPUs that runs may use, by their numbers; () for none, when processes get a core each. None:
    those of CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists."""
    cores: int | None = None
    """Cores that runs on processors may use, one for each process; None: all that this process
    may."""
    stop_grace_s: float = 10.0
    """Time between asking a job to end and killing it."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.cores is not None and self.cores < 1:
            raise ConfigError(f"cores={self.cores}: expected 1 or more")
        if self.stop_grace_s < 0:
            raise ConfigError(f"stop_grace_s={self.stop_grace_s}: expected seconds, 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmOptions:
    """Slurm; what a job says itself goes before these."""

    account: str | None = None
    partition: str | None = None
    time_limit_s: int | None = None
    image: str | None = None
    words: tuple[str, ...] = ()
    """More options of sbatch, behind the job's own: `--qos=high`."""
    array_at_once: int | None = None
    """How many tasks of an array run at a time; None: as many as Slurm starts."""
    patience_s: float = 60.0
    """How long a command of Slurm may take."""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.array_at_once is not None and self.array_at_once < 1:
            raise ConfigError(f"array_at_once={self.array_at_once}: expected 1 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class KubernetesOptions:
    """Kubernetes; what a job says itself goes before these."""

    kind: KubernetesKind = "trainjob"
    """What is created; the cluster needs the operator that runs it."""
    namespace: str | None = None
    """None: the context's, else that of the pod that this runs in."""
    context: str | None = None
    """None: kubectl's current one, else the service account of the pod that this runs in."""
    queue: str | None = None
    """A queue of Kueue."""
    image: str | None = None
    time_limit_s: int | None = None
    patience_s: float = 60.0
    """How long the API may take to answer."""

    def __post_init__(self) -> None:
        """Check the kind."""
        if self.kind not in get_args(KubernetesKind):
            raise UnknownNameError("kind of job on Kubernetes", self.kind, get_args(KubernetesKind))


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseCommandOptions:
    """Base Command; what a job says itself goes before these."""

    organization: str | None = None
    ace: str | None = None
    instance: str | None = None
    image: str | None = None
    time_limit_s: int | None = None
    words: tuple[str, ...] = ()
    """More options of `ngc base-command job run`: `--preempt RUNONCE`."""
    log_every_s: float = 30.0
    """Time between two fetches of a running job's log."""
    patience_s: float = 120.0
    """How long a command of NGC CLI may take."""


def with_defaults(job: Job, **values: Any) -> Job:
    """Return the job with values where it says none itself."""
    return replace(
        job,
        **{
            name: value
            for name, value in values.items()
            if value is not None and getattr(job, name) is None
        },
    )
