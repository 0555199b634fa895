"""A nested configuration from which values are taken by path, so that what is left can be named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshwright.errors import ConfigError

__all__ = ["Taken"]


class Taken:
    """Values of a configuration by dotted path; each is taken once, `left` names the rest."""

    def __init__(self, values: Mapping[str, Any], *, what: str) -> None:
        """Flatten nested mappings; `what` stands before error messages."""
        self._what = what
        self._values = dict(_flat(values, ""))

    def take(self, path: str, default: Any) -> Any:
        """Take a value of any type."""
        return self._values.pop(path, default)

    def whole(self, path: str, default: int) -> int:
        """Take a whole number."""
        value = self.take(path, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self._what}: {path}={value!r}: expected a whole number")
        return value

    def count(self, path: str, default: int) -> int:
        """Take a whole number of 1 or more."""
        value = self.whole(path, default)
        if value < 1:
            raise ConfigError(f"{self._what}: {path}={value}: expected 1 or more")
        return value

    def number(self, path: str, default: float) -> float:
        """Take a number; YAML reads 1e-5, without a point, as text."""
        value = self.take(path, default)
        try:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{self._what}: {path}={value!r}: expected a number") from None

    def flag(self, path: str, default: bool) -> bool:
        """Take true or false; null is the default."""
        value = self.take(path, default)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ConfigError(f"{self._what}: {path}={value!r}: expected true or false")
        return value

    def text(self, path: str, default: str) -> str:
        """Take a text."""
        value = self.take(path, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self._what}: {path}={value!r}: expected a text")
        return value

    def has(self, path: str) -> bool:
        """Whether a value is there, and not null."""
        return self._values.get(path) is not None

    def peek(self, path: str) -> Any:
        """Return a value and leave it; None where there is none."""
        return self._values.get(path)

    def put(self, path: str, value: Any) -> None:
        """Set a value that the file says in other words."""
        self._values[path] = value

    def drop(self, values: Mapping[str, Any]) -> None:
        """Take away what equals these values."""
        for path, value in values.items():
            if path in self._values and self._values[path] == value:
                del self._values[path]

    def drop_under(self, prefixes: Iterable[str]) -> None:
        """Take away everything below these paths."""
        for path in [
            path
            for path in self._values
            if any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)
        ]:
            del self._values[path]

    def left(self) -> dict[str, Any]:
        """Return what was not taken, without nulls."""
        return {path: value for path, value in self._values.items() if value is not None}


def _flat(values: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
