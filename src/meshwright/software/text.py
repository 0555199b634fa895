"""Plain values as text: TOML, Python calls."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshwright.values.errors import ConfigError

__all__ = ["Code", "Taken", "python_call", "toml_text"]


class Code(str):
    """Python text that stands for itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def toml_text(sections: Mapping[str, Mapping[str, Any]], *, comment: Sequence[str]) -> str:
    """Write sections of strings, numbers, booleans and lists of them; TOML has no null, so None is
    left out."""
    blocks = ["\n".join(f"# {line}" for line in comment)]
    for name, values in sections.items():
        lines = [
            f"{key} = {_toml_value(value)}" for key, value in values.items() if value is not None
        ]
        blocks.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        if value and isinstance(value[0], list):
            return "[\n" + "".join(f"  {_toml_value(entry)},\n" for entry in value) + "]"
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a TOML basic string has JSON's escapes
    return json.dumps(value) if isinstance(value, (bool, int)) else repr(float(value))


def python_call(function: str, arguments: Mapping[str, Any], *, indent: int = 0) -> str:
    """Write a call with one keyword argument a line."""
    inner = "    " * (indent + 1)
    lines = [f"{inner}{name}={value!r},\n" for name, value in arguments.items()]
    return f"{function}(\n{''.join(lines)}{'    ' * indent})"


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
            found = float(value)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
        if not math.isfinite(found):
            raise ConfigError(f"{self._what}: {path}={value!r}: expected a number")
        return found

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
