"""Every platform by its names: those of this package, and those of others by entry points."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from meshwright import platforms as package
from meshwright.platforms.contract import Platform
from meshwright.platforms.executor import Executor
from meshwright.platforms.job import Job, JobText
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "executor",
    "find_platform",
    "find_runner",
    "job_text",
    "launchers",
    "launchers_without_gpus",
    "platforms",
    "runners",
]

GROUP = "meshwright.platforms"
"""Of entry points; each names a Platform, or a tuple of them."""


@cache
def platforms() -> tuple[Platform, ...]:
    """Return every platform in order; ConfigError for a name twice, or one that can't be loaded."""
    found = [*_own(), *_of_other_packages()]
    owners: dict[str, Platform] = {}
    for platform in found:
        for name in platform.names:
            if owners.setdefault(name, platform) is not platform:
                raise ConfigError(
                    f"platform {name}: there are two of that name,"
                    f" {owners[name].title} and {platform.title}; uninstall the package of one"
                )
    return tuple(sorted(found, key=lambda platform: (platform.place, platform.name)))


def _own() -> Iterable[Platform]:
    """Whatever a file or folder of this package has as PLATFORMS."""
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield from getattr(import_module(module.name), "PLATFORMS", ())


def _of_other_packages() -> Iterable[Platform]:
    # A package that lies twice on sys.path is listed twice.
    for entry in dict.fromkeys(entry_points(group=GROUP)):
        yield from _loaded(entry)


def _loaded(entry: EntryPoint) -> tuple[Platform, ...]:
    try:
        found = entry.load()
    except Exception as error:  # whatever another package does when it is imported
        raise ConfigError(
            f"platform {entry.name}: {entry.value} can't be loaded ({error!r}); mend or uninstall"
            " its package"
        ) from error
    rows = (found,) if isinstance(found, Platform) else found
    if not isinstance(rows, tuple) or not all(isinstance(row, Platform) for row in rows):
        raise ConfigError(
            f"platform {entry.name}: {entry.value} is {found!r}; expected a Platform, or a tuple of"
            " them"
        )
    return rows


def launchers() -> tuple[str, ...]:
    """Return the platforms that a job can be written for."""
    return tuple(platform.name for platform in platforms())


def launchers_without_gpus() -> tuple[str, ...]:
    """Return those on which a process per node knows its number without GPUs."""
    return tuple(platform.name for platform in platforms() if platform.without_gpus)


def runners() -> tuple[str, ...]:
    """Return the launchers that runs can be started on."""
    return tuple(platform.launcher for platform in platforms() if platform.start is not None)


def find_platform(name: str) -> Platform:
    """Return the platform of a name; none stands in for another."""
    return _named(name, launchers)


def find_runner(name: str) -> Platform:
    """Return a platform that runs can be started on; ConfigError says why others can't."""
    platform = _named(name, runners)
    if platform.start is None:
        raise ConfigError(f"launcher {name}: {platform.why_not_started}")
    return platform


def _named(name: str, others: Callable[[], tuple[str, ...]]) -> Platform:
    for platform in platforms():
        if name in platform.names:
            return platform
    raise UnknownNameError("launcher", name, others())


def job_text(job: Job, *, launcher: str) -> JobText:
    """Write a job for a platform; UnknownNameError where none is, or none without GPUs."""
    platform = find_platform(launcher)
    if job.asks_for == "nodes" and not platform.without_gpus:
        raise UnknownNameError("launcher of jobs without GPUs", launcher, launchers_without_gpus())
    return platform.write(job)


def executor(launcher: str, **options: Any) -> Executor:
    """Return the executor of a launcher with its options, each by its known name."""
    platform = find_runner(launcher)
    for name in options:
        if name not in platform.option_names:
            raise UnknownNameError(
                f"option of the launcher {launcher}", name, platform.option_names
            )
    assert platform.start is not None and platform.options is not None
    return platform.start(platform.options(**platform.fixed, **options))
