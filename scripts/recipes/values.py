"""Values that the evaluation of a recipe's source handles.

Numbers, texts, lists, dicts and tuples are Python's own. Whatever the source makes of classes, and
whatever can't be known, is a Record, so that settings can be put on it and read back.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BoundMethod",
    "ClassValue",
    "External",
    "Frame",
    "FunctionValue",
    "Lazy",
    "ModuleValue",
    "Raised",
    "Record",
    "Returned",
    "Unsupported",
    "is_known",
    "unknown",
]


@dataclass(eq=False)
class Record:
    """An object: its attributes as far as the source sets them."""

    kind: str
    """Its class, or what it was read from."""
    known: dict[str, Any] = field(default_factory=dict)
    of_class: ClassValue | None = None
    """The class, where the repository has it; None where it comes from elsewhere."""


@dataclass(eq=False)
class ModuleValue:
    """A module of the repository."""

    name: str
    package: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Frame:
    """The names of a function's call."""

    module: ModuleValue
    values: dict[str, Any] = field(default_factory=dict)
    parent: Frame | None = None


@dataclass(eq=False)
class FunctionValue:
    """A function or a lambda of the repository."""

    node: ast.FunctionDef | ast.Lambda
    frame: Frame


@dataclass(eq=False)
class BoundMethod:
    """A method with its object."""

    function: FunctionValue
    owner: Record


@dataclass(eq=False)
class ClassValue:
    """A class of the repository."""

    node: ast.ClassDef
    frame: Frame


@dataclass(frozen=True)
class External:
    """A name from outside the repository: `torch.bfloat16`."""

    name: str


@dataclass(frozen=True)
class Lazy:
    """An imported name, looked up when it is first used."""

    module: str
    name: str | None


class Raised(Exception):
    """The source raises an exception."""


class Returned(Exception):
    """The source returns from a function."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Unsupported(Exception):
    """The source holds a construct that recipes don't need."""


def unknown(what: str) -> Record:
    """Return a value that nothing is known of."""
    return Record(kind=f"?{what}")


def is_known(value: Any) -> bool:
    """True for Python's own values and lists of them."""
    if isinstance(value, list | tuple):
        return all(is_known(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)
