"""The files `stack.toml` of training software: one a folder of `meshwright/software`, and one of
each package that an entry point of the group `meshwright.software` names.

A file has a section for each stack. `builds_on` names the stack that it is like, and `figures` are
the fields of `Stack` in which it differs, in groups that share a source; `rules` is read by
`search/rules/software.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, cast

from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = ["GROUP", "Plugin", "StackEntry", "all_entries", "find_entry", "plugins"]

GROUP = "meshwright.software"
"""Of entry points: `name = "package"`, where the package has a `stack.toml` and may have an object
`SOFTWARE` (meshwright/software/record.py)."""
_FILE = "stack.toml"
_KEYS = ("rank", "family", "builds_on", "about", "figures", "rules")


@dataclass(frozen=True, kw_only=True, slots=True)
class StackEntry:
    """One stack as its file has it."""

    name: str
    place: str
    """Its file, for messages."""
    rank: int
    """Stacks are named in this order; those of other packages come last."""
    family: str | None
    """None: that of the stack that it builds on."""
    builds_on: str | None
    about: str
    """What it is, in a line."""
    figures: Mapping[str, Any]
    """Fields of `Stack` in which it differs."""
    sources: Mapping[str, str]
    """Of each figure."""
    rules: Mapping[str, Any] | None
    """What it accepts where that differs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugin:
    """A folder of a software outside this package."""

    name: str
    package: str
    """As it is imported."""


def find_entry(name: str) -> StackEntry | None:
    """Return a stack's section; other packages are looked at where this one has no such name."""
    return _own().get(name) or _others().get(name)


@cache
def all_entries() -> tuple[StackEntry, ...]:
    """Return every stack, in their order."""
    return (*_own().values(), *_others().values())


@cache
def plugins() -> tuple[Plugin, ...]:
    """Return the softwares of other packages by name."""
    from importlib.metadata import entry_points  # slow, and seldom needed

    found = {point.name: point.value for point in entry_points(group=GROUP)}
    return tuple(Plugin(name=name, package=found[name]) for name in sorted(found))


@cache
def _own() -> dict[str, StackEntry]:
    software = resources.files("meshwright") / "software"
    folders = sorted((one for one in software.iterdir() if one.is_dir()), key=lambda one: one.name)
    files = [folder / _FILE for folder in folders]
    return _by_rank(
        entry for file in files if file.is_file() for entry in _entries(file, str(file))
    )


@cache
def _others() -> dict[str, StackEntry]:
    found: dict[str, StackEntry] = {}
    for plugin in plugins():
        try:
            file = resources.files(plugin.package) / _FILE
        except ImportError as error:
            raise ConfigError(
                f"software {plugin.name}: its package {plugin.package} can't be imported ({error});"
                " mend or uninstall it"
            ) from None
        found |= _by_rank(_entries(file, f"{plugin.package}/{_FILE}") if file.is_file() else ())
    taken = sorted(found.keys() & _own().keys())
    if taken:
        raise ConfigError(
            f"{found[taken[0]].place}: stack {taken[0]} is one of Meshwright's own; rename it"
        )
    return found


def _by_rank(entries: Iterator[StackEntry] | tuple[()]) -> dict[str, StackEntry]:
    ordered = sorted(entries, key=lambda entry: (entry.rank, entry.name))
    return {entry.name: entry for entry in ordered}


def _entries(file: Traversable, place: str) -> Iterator[StackEntry]:
    try:
        sections = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place}: {error}") from None
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{place}: {name} stands outside a stack's section, such as [mine]")
        yield _entry(name, section, f"{place}: stack {name}")


def _entry(name: str, section: dict[str, Any], place: str) -> StackEntry:
    for key in section:
        if key not in _KEYS:
            raise UnknownNameError(f"{place}: key", key, _KEYS)
    if name != name.lower():
        raise ConfigError(f"{place}: names are written small, {name.lower()}")
    groups = _groups(section.get("figures", []), place)
    return StackEntry(
        name=name,
        place=place,
        rank=int(section.get("rank", 0)),
        family=section.get("family"),
        builds_on=section.get("builds_on"),
        about=str(section.get("about", "")),
        figures={key: value for _, figures in groups for key, value in figures.items()},
        sources={key: source for source, figures in groups for key in figures},
        rules=section.get("rules"),
    )


def _groups(groups: Any, place: str) -> list[tuple[str, dict[str, Any]]]:
    """Return source and figures of each group; ConfigError without a source, or for one twice."""
    if not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        raise ConfigError(f"{place}: expected [[....figures]], groups of figures with a source")
    found: list[tuple[str, dict[str, Any]]] = []
    seen: set[str] = set()
    for group in cast("list[dict[str, Any]]", groups):
        figures = {key: value for key, value in group.items() if key != "source"}
        if not isinstance(group.get("source"), str) or not group["source"].strip():
            raise ConfigError(
                f"{place}: {', '.join(figures) or 'a group of figures'} has no source"
            )
        twice = seen & figures.keys()
        if twice:
            raise ConfigError(f"{place}: {min(twice)} stands there twice")
        seen |= figures.keys()
        found.append((group["source"], figures))
    return found
