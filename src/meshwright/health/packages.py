"""Versions of the package, of what it needs, and of its extras, as the installation itself names
them."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshwright.health.finding import Finding

__all__ = ["Requirement", "installed_version", "package_findings", "read_requirement"]

_NO_EXTRAS = "no record of an installation names them, so nobody can say what they lack"
_LINE = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)\s*(?:>=\s*(?P<least>[0-9][0-9.]*))?[^;]*(?:;(?P<marker>.*))?$"
)
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_BELOW = re.compile(r"python_version\s*<\s*['\"]([0-9.]+)['\"]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One line of what the distribution requires."""

    name: str
    least: str | None
    """Version from which on it does."""
    extra: str | None
    """None is the core."""
    applies: bool
    """Whether this version of Python needs it."""


def read_requirement(line: str) -> Requirement:
    """Read `torch>=2.5; extra == 'train'`, the form that this package's own requirements have."""
    match = _LINE.match(line.strip())
    assert match is not None, f"requirement {line!r}"
    marker = match["marker"] or ""
    extra, below = _EXTRA.search(marker), _BELOW.search(marker)
    return Requirement(
        name=match["name"],
        least=match["least"],
        extra=None if extra is None else extra[1],
        applies=below is None or sys.version_info[:2] < tuple(_numbers(below[1])),
    )


def package_findings(
    lines: Iterable[str] | None, *, version_of: Callable[[str], str | None] | None = None
) -> list[Finding]:
    """Return the versions of Python, of the package and of what `lines`, or the installation,
    require."""
    from meshwright import __version__

    look = version_of or installed_version
    named = lines if lines is not None else _own_lines()
    found = [read_requirement(line) for line in named or ()]
    required = [requirement for requirement in found if requirement.applies]
    findings = [
        Finding(room="software", name="meshwright", state="ok", words=__version__),
        Finding(
            room="software",
            name="python",
            state="ok",
            words=f"{platform.python_version()} on {platform.platform(terse=True)}",
        ),
        *(
            _core_finding(requirement, look(requirement.name))
            for requirement in required
            if requirement.extra is None
        ),
    ]
    extras = dict.fromkeys(
        requirement.extra for requirement in found if requirement.extra is not None
    )
    if not extras:
        return [
            *findings,
            Finding(
                room="extras",
                name="extras",
                state="absent",
                words=_NO_EXTRAS,
                remedy="pip install .",
            ),
        ]
    return [
        *findings,
        *(
            _extra_finding(extra, [r for r in required if r.extra == extra], look)
            for extra in extras
        ),
    ]


def _own_lines() -> list[str] | None:
    try:
        return importlib.metadata.requires("meshwright") or []
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_version(name: str) -> str | None:
    """Return the version of an installed package, None where it is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _core_finding(requirement: Requirement, version: str | None) -> Finding:
    line = (
        "pip install"
        f" '{requirement.name}{'' if requirement.least is None else f'>={requirement.least}'}'"
    )
    if version is None:
        return Finding(
            room="software",
            name=requirement.name,
            state="broken",
            words="is not installed, and every command needs it",
            remedy=line,
        )
    if _is_older(version, requirement.least):
        words = f"{version} is older than the {requirement.least} that is needed"
        return Finding(
            room="software", name=requirement.name, state="broken", words=words, remedy=line
        )
    return Finding(room="software", name=requirement.name, state="ok", words=version)


def _extra_finding(
    extra: str, requirements: list[Requirement], look: Callable[[str], str | None]
) -> Finding:
    versions = {requirement.name: look(requirement.name) for requirement in requirements}
    missing = [name for name, version in versions.items() if version is None]
    needed = {requirement.name: requirement.least for requirement in requirements}
    present = {name: version for name, version in versions.items() if version is not None}
    old = [
        f"{name} {version} is older than {needed[name]}"
        for name, version in present.items()
        if _is_older(version, needed[name])
    ]
    remedy = f"pip install 'meshwright[{extra}]'"
    if old:
        return Finding(
            room="extras", name=extra, state="broken", words="; ".join(old), remedy=remedy
        )
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return Finding(
            room="extras",
            name=extra,
            state="absent",
            words=f"{', '.join(missing)} {verb} not installed",
            remedy=remedy,
        )
    return Finding(
        room="extras",
        name=extra,
        state="ok",
        words=", ".join(f"{name} {version}" for name, version in versions.items()),
    )


def _is_older(version: str, least: str | None) -> bool:
    return least is not None and _numbers(version) < _numbers(least)


def _numbers(version: str) -> list[int]:
    """The release of a version, `2.13.0+cpu` as [2, 13, 0]; trailing zeros count for nothing."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    numbers = [int(word) for word in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
