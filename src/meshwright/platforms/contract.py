"""What one platform is: the text of its jobs, what starts them, and its words for their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from meshwright.platforms.executor import UNKNOWN, Executor, JobState
from meshwright.platforms.job import Job, JobText
from meshwright.software.folders import TimeForm

__all__ = ["Platform"]

_LAST_PLACE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One platform that jobs are written for, and mostly started on.

    A file or folder of `meshwright.platforms` has its records in `PLATFORMS`. Another package names
    a record, or a tuple of them, by an entry point of the group `meshwright.platforms`.
    """

    name: str
    """Of `meshwright export --launcher`."""
    title: str
    """For people."""
    write: Callable[[Job], JobText]
    """The text of a job, a pure function of it."""
    needs: str
    """What must be installed or reachable before a job can be sent."""
    runs_as: str | None = None
    """Its name where runs are started, if that is another; every command takes both."""
    place: int = _LAST_PLACE
    """Its place in lists; platforms of one place stand by name."""
    without_gpus: bool = False
    """Whether a process on each node knows its number without torchrun, MPI or GPUs."""

    start: Callable[[Any], Executor] | None = None
    """Makes the executor from its options; None: its jobs are only written."""
    why_not_started: str = ""
    """Where there is no executor: the reason, and what would be needed."""
    options: type[Any] | None = None
    """The dataclass of the executor's options."""
    fixed: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Options that the name itself says, such as the kind of a Kubernetes job."""
    states: Mapping[str, JobState] = field(default_factory=lambda: MappingProxyType({}))
    """The platform's words for how a job is, with a row UNKNOWN for all others."""

    limit: str = ""
    """Where the limit on time stands; {time} is it in the platform's form."""
    form: TimeForm = "seconds"
    """Of that limit."""
    sees_here: bool = False
    """Whether a job without a container sees the paths of the machine that submits it."""
    copies_paths: bool = False
    """Whether a path that is mounted is a copy on each node, gone with it; buckets are mounted."""
    chains: bool = False
    """Whether the platform itself starts a job when another has ended."""
    caveats: tuple[str, ...] = ()
    """Of limits and of what can't be followed."""

    def __post_init__(self) -> None:
        """Hold that a platform is started and explained, or neither."""
        assert (self.start is None) == bool(self.why_not_started), self.name
        if self.start is not None:
            assert self.options is not None, f"{self.name}: an executor takes options"
            assert self.states.get(UNKNOWN) == "unknown", f"{self.name}: no row {UNKNOWN}"
            assert "{time}" in self.limit, f"{self.name}: where does its limit on time stand?"

    @property
    def launcher(self) -> str:
        """Its name where runs are started."""
        return self.runs_as or self.name

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if self.runs_as is None else (self.name, self.runs_as)

    @property
    def option_names(self) -> tuple[str, ...]:
        """Options that a user may give its executor."""
        if self.options is None:
            return ()
        return tuple(entry.name for entry in fields(self.options) if entry.name not in self.fixed)
