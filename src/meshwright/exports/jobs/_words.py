"""What a platform has a word for, and how the rest is refused."""

from __future__ import annotations

import re
from collections.abc import Collection

from meshwright.errors import ConfigError
from meshwright.exports.jobs.job import Job, Launch, Mount

__all__ = ["check_fields", "dns_label", "mount_of", "no_files", "required", "way"]

_OPTIONAL = (
    "image",
    "mounts",
    "workdir",
    "account",
    "partition",
    "instance",
    "log_dir",
    "port",
    "cpus",
    "memory",
    "shared_memory",
    "priority",
    "words",
)


def check_fields(job: Job, platform: str, known: Collection[str]) -> None:
    """Refuse what the job says and the platform has no word for."""
    unknown = [name for name in _OPTIONAL if name not in known and getattr(job, name)]
    if unknown:
        raise ConfigError(
            f"{platform} has no word for {', '.join(unknown)}; leave"
            f" {'it' if len(unknown) == 1 else 'them'} out"
        )


def required(job: Job, platform: str, field: str, example: str) -> str:
    """Return a field that the platform cannot do without."""
    value = getattr(job, field)
    if value is None:
        raise ConfigError(f"{platform} needs {field}, such as {example}")
    return str(value)


def way(job: Job, platform: str, ways: tuple[Launch, ...]) -> Launch:
    """Return how processes are started: as asked, else the first of the platform's ways; `torchrun`
    stands for one task per node."""
    if job.runs_on == "node" and "torchrun" not in ways:
        raise ConfigError(
            f"{platform} starts one process per GPU; {job.command[0]} is to be run once per node"
            " and starts them itself"
        )
    if job.launch is not None and job.launch not in ways:
        raise ConfigError(
            f"{platform} does not start processes by {job.launch}; it does by {' or '.join(ways)}"
        )
    return job.launch or ways[0]


def no_files(job: Job, platform: str) -> None:
    """Refuse files where several ranks of a node would write them at once."""
    if job.files:
        names = ", ".join(file.name for file in job.files)
        raise ConfigError(
            f"{platform} cannot bring {names} to the nodes; export the command with the files in"
            " the image or on a mount"
        )


def mount_of(mount: Mount, platform: str, kinds: tuple[str, ...]) -> Mount:
    """Return a mount of a kind that the platform knows."""
    if mount.kind not in kinds:
        words = " or ".join("a path" if kind == "path" else f"{kind}=NAME" for kind in kinds)
        raise ConfigError(
            f"{platform} cannot mount {mount.kind} {mount.source} at {mount.target}: expected"
            f" {words}"
        )
    if mount.kind == "path" and not mount.source.startswith("/"):
        raise ConfigError(
            f"mount {mount.source}:{mount.target}: expected an absolute path on the node"
        )
    return mount


def dns_label(job: Job, platform: str, most: int) -> str:
    """Return the name where the platform makes host names of it, which have lower case, digits and
    dashes."""
    if re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", job.name) and len(job.name) <= most:
        return job.name
    near = (
        re.sub(r"[^a-z0-9]+", "-", job.name.lower()).lstrip("-0123456789")[:most].strip("-")
        or "job"
    )
    raise ConfigError(
        f"name={job.name}: {platform} takes up to {most} lower-case letters, digits and dashes, the"
        f" first a letter; {near} would do"
    )
