"""Every error that Meshwright raises on purpose.

MeshwrightError
├── ConfigError (also ValueError)    what the user gave is wrong: one clear line, exit code 2
│   ├── UnknownNameError             a model, chip, key or option that does not exist, with the
│                                    nearest names
│   ├── MissingWord                  a word without which a job can't be written, and its place
│   ├── LayoutError                  a layout that breaks a rule of the training software
│   └── CannotExpress                a plan that the training software it is exported to has no
│                                    words for
├── LauncherError                    what starts jobs is not there, or refuses one
│   └── LauncherSilent               it does not answer now; asking again later may do
├── ServerError                      a server that is to be measured does not start, answers
│                                    nothing, or refuses every request
├── StudyError                       a study that can't go on: its folder is another's, in use, or
│                                    can't be written; exit code 2
└── MissingExtraError                an optional dependency is not installed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = [
    "CannotExpress",
    "ConfigError",
    "LauncherError",
    "LauncherSilent",
    "LayoutError",
    "MeshwrightError",
    "MissingExtraError",
    "MissingWord",
    "ServerError",
    "StudyError",
    "UnknownNameError",
    "install_words",
    "load_extra",
    "nearest_names",
    "require_scorers",
]


class MeshwrightError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(MeshwrightError, ValueError):
    """The user's input is wrong; the message says what was given and expected, and what to do."""


class MissingWord(ConfigError):
    """A word is missing without which a job can't be written."""

    def __init__(self, message: str, *, field: str, value: Any) -> None:
        """Keep its field, and what stands in its place where a job is only shown."""
        super().__init__(message)
        self.field, self.value = field, value


class LayoutError(ConfigError):
    """A layout breaks a rule; the message is the rule's sentence with the nearest valid values."""


class CannotExpress(ConfigError):
    """A plan has no words in a training software."""

    def __init__(self, target: str, reason: str, *, nearest: str) -> None:
        """Say why, and the nearest plan that has (`vpp=1`, `sharding=zero1`)."""
        super().__init__(f"{target}: {reason}; the nearest plan that it takes: {nearest}")
        self.target = target
        self.reason = reason
        self.nearest = nearest


class UnknownNameError(ConfigError):
    """A name that does not exist."""

    def __init__(self, kind: str, name: str, choices: Iterable[str], *, hint: str = "") -> None:
        """Say that `name` is no `kind`, with the nearest of `choices`."""
        known = list(choices)
        near = nearest_names(name, known)
        advice = (
            f"; did you mean {' or '.join(repr(n) for n in near)}?"
            if near
            else f"; known: {_some(known)}"
        )
        super().__init__(f"{name!r} is no known {kind}{advice}{hint}")


class StudyError(MeshwrightError):
    """A study can't go on here; what it measured so far is kept."""


class LauncherError(MeshwrightError):
    """What starts jobs is not there or refuses one; the message holds its own words."""


class LauncherSilent(LauncherError):
    """It does not answer now. A job that was being submitted may exist: `Executor.find` tells."""


class ServerError(MeshwrightError):
    """A server that is to be measured does not start, does not answer, or refuses every request."""


class MissingExtraError(MeshwrightError):
    """An optional dependency is absent."""

    def __init__(self, module: str, extra: str) -> None:
        """Say which extra brings `module`."""
        super().__init__(f"this needs {module}, which is not installed: {install_words(extra)}")


def install_words(extra: str) -> str:
    """Return the command that brings an extra: in a clone, whose scorers are seen here, of the
    clone; elsewhere of the package."""
    is_clone = find_spec("meshwright_truth") is not None
    return f"pip install -e '.[{extra}]'" if is_clone else f"pip install 'meshwright[{extra}]'"


def load_extra(module: str, extra: str) -> Any:
    """Return a module of an optional dependency; MissingExtraError where it is absent."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(module, extra) from None


def require_scorers() -> None:
    """Refuse to compare with measurements where the scorers, which the wheel lacks, are not
    there."""
    if find_spec("meshwright_truth") is None:
        raise ConfigError(
            "validate: the scorers of published runs (meshwright_truth) are in the repository, not"
            " in the wheel; clone it and run pip install -e ."
        )


def nearest_names(name: str, choices: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the choices closest in spelling to `name`, best first."""
    by_lower = {c.lower(): c for c in choices}
    return [
        by_lower[m]
        for m in difflib.get_close_matches(name.lower(), list(by_lower), n=most, cutoff=0.6)
    ]


def _some(names: list[str], most: int = 12) -> str:
    return ", ".join(sorted(names)[:most]) + (", ..." if len(names) > most else "")
