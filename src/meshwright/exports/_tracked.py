"""Which fields of a plan an exporter has looked at."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast

__all__ = ["fields_set", "plain", "tracked"]

T = TypeVar("T")


class _Tracked:
    """Stands before a frozen value; the name of each field that is read goes into `seen`,
    properties do not count."""

    __slots__ = ("_path", "_seen", "_values")

    def __init__(self, values: Any, path: str, seen: set[str]) -> None:
        self._values = values
        self._path = path
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._values, name)
        if name not in {field.name for field in fields(self._values)}:
            return value
        path = f"{self._path}{name}"
        self._seen.add(path)
        return _Tracked(value, f"{path}.", self._seen) if is_dataclass(value) else value


def tracked(values: T, seen: set[str]) -> T:
    """Return a stand-in for a frozen value that adds `layout.tp` to `seen` when that is read."""
    return cast("T", _Tracked(values, "", seen))


def plain(values: T) -> T:
    """Return the value behind a stand-in, for functions that read all of it; nothing counts as
    looked at."""
    return cast("T", values._values) if isinstance(values, _Tracked) else values


def fields_set(values: Any, path: str) -> dict[str, Any]:
    """Return the fields that have no default or another value than it, by path; nested values give
    their own fields."""
    found: dict[str, Any] = {}
    for field in fields(values):
        value = getattr(values, field.name)
        if is_dataclass(value):
            found |= {f"{path}{field.name}": value, **fields_set(value, f"{path}{field.name}.")}
        elif field.default is MISSING or value != field.default:
            found[f"{path}{field.name}"] = value
    return found
