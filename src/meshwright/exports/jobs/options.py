"""What a user says of a job beyond its plan: flags and job files, in the same words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from meshwright.errors import ConfigError, UnknownNameError
from meshwright.exports.exported import Exported
from meshwright.exports.jobs.job import Job, Launch, parse_mount
from meshwright.hardware.cluster import Pool
from meshwright.units import parse_duration

__all__ = ["JobOptions", "job_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """Fields of a job file, and flags of `meshwright export`; docs/jobs.md says what each means on
    a platform."""

    name: str | None = None
    """None: the model's."""
    start: Launch | None = None
    time: str | None = None
    """A duration such as 5D."""
    image: str | None = None
    mounts: tuple[str, ...] = ()
    """SOURCE:TARGET[:ro] or KIND=NAME:TARGET."""
    workdir: str | None = None
    account: str | None = None
    partition: str | None = None
    instance: str | None = None
    log_dir: str | None = None
    cpus: int | None = None
    memory: str | None = None
    shared_memory: str | None = None
    priority: str | None = None
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what is not checked by the job itself."""
        if self.start is not None and self.start not in get_args(Launch):
            raise UnknownNameError("way to start processes", self.start, get_args(Launch))

    @staticmethod
    def of(given: Mapping[str, Any]) -> JobOptions:
        """Build options from plain values (YAML, flags); an unknown key is an error with the
        nearest one."""
        known = [field.name for field in fields(JobOptions)]
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in known:
                raise UnknownNameError("key of a job", str(key), known)
            values[key] = (
                _list(key, value)
                if key in ("mounts", "words")
                else _number(key, value)
                if key == "cpus"
                else _text(key, value)
            )
        return JobOptions(**values)


def _text(key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"job: {key}={value}: expected a text; put it in quotes")
    return value


def _number(key: str, value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ConfigError(f"job: {key}={value}: expected a whole number")
    return value


def _list(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(part, str) for part in value):
        raise ConfigError(f"job: {key}={value}: expected a list of texts")
    return tuple(value)


def job_of(exported: Exported, *, model: str, pool: Pool, options: JobOptions) -> Job:
    """Return the job that runs an export on a pool's chips."""
    per_node = min(pool.node.chips_per_node, pool.num_chips)
    if pool.num_chips % per_node:
        raise ConfigError(
            f"{pool.num_chips} chips on nodes of {per_node}: a job starts equally many processes on"
            " every node"
        )
    reads = any(_names(word, file.name) for file in exported.files for word in exported.command)
    return Job(
        name=options.name or _name(model),
        command=exported.command,
        runs_on=exported.runs_on,
        environment=exported.environment,
        nodes=pool.num_chips // per_node,
        gpus_per_node=per_node,
        vendor=pool.node.chip.vendor,
        launch=options.start,
        time_limit_s=None if options.time is None else parse_duration(options.time, name="time"),
        image=options.image,
        mounts=tuple(map(parse_mount, options.mounts)),
        workdir=options.workdir,
        files=exported.files if reads else (),
        account=options.account,
        partition=options.partition,
        instance=options.instance,
        log_dir=options.log_dir,
        cpus=options.cpus,
        memory=options.memory,
        shared_memory=options.shared_memory,
        priority=options.priority,
        words=options.words,
    )


def _names(word: str, file: str) -> bool:
    """Whether a word of the command is about a file: by its name, as a module of Python, or as a
    configuration of Hydra."""
    module = file.endswith(".py") and word == file.removesuffix(".py").replace("/", ".")
    return (
        file in word
        or module
        or (file.endswith(".yaml") and word == f"--config-name={file.removesuffix('.yaml')}")
    )


def _name(model: str) -> str:
    """Return a name that every platform takes."""
    return (
        re.sub(r"[^a-z0-9]+", "-", model.lower()).lstrip("-0123456789")[:40].strip("-")
        or "training"
    )
