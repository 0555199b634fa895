"""Typed access to a Hugging Face config: values are checked, complaints name config and key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.values.errors import ConfigError

__all__ = [
    "HfConfig",
    "shown",
]

_MOST = 10**8
"""Beyond any number in a config; keeps later arithmetic far from overflow."""
_TINIEST = 2.0**-1022
"""The least normal number of a double: a positive number is at least this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HfConfig:
    """A config.json, or a section of it. Keys may be alternatives, best first:
    `num_hidden_layers|n_layer`. null is as good as absent."""

    name: str
    """How messages call it."""
    values: Mapping[str, Any]

    def has(self, keys: str) -> bool:
        """Say whether one of the alternatives is given."""
        return self._find(keys) is not None

    def require(self, wanted: Iterable[str]) -> None:
        """Raise with the full list of the wanted keys that are absent."""
        missing = [
            keys.replace("|", " (or ") + (")" if "|" in keys else "")
            for keys in wanted
            if not self.has(keys)
        ]
        if missing:
            raise ConfigError(f"{self.name}: missing {', '.join(missing)}")

    def count(self, keys: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number from `least` on."""
        value = self._find(keys)
        if value is None:
            if default is None:
                self.require([keys])
            return default or 0
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise self._wrong(keys, value, f"a whole number from {least} to {_MOST}")
        return value

    def number(
        self, keys: str, default: float, *, least: float = _TINIEST, most: float = _MOST
    ) -> float:
        """Return a number from `least` to `most`: without them a positive one."""
        value = self._find(keys)
        if value is None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value <= most
        ):
            raise self._wrong(keys, value, "a positive number" if least > 0 else "a number from 0")
        return float(value)

    def flag(self, keys: str, default: bool) -> bool:
        """Return true or false."""
        value = self._find(keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(keys, value, "true or false")
        return value

    def text(self, keys: str, default: str | None = None) -> str:
        """Return a text."""
        value = self._find(keys)
        if value is None:
            if default is None:
                self.require([keys])
            return default or ""
        if not isinstance(value, str):
            raise self._wrong(keys, value, "a text")
        return value

    def items(self, keys: str) -> list[Any] | None:
        """Return a list, or None where there is none."""
        value = self._find(keys)
        if value is not None and not isinstance(value, list):
            raise self._wrong(keys, value, "a list")
        return value

    def alike(self, *keys: str, length: int) -> HfConfig:
        """Return the config with one value in place of each of these keys' lists, which hold the
        same value for each of `length` layers."""
        values = dict(self.values)
        for key in keys:
            if isinstance(listed := values.get(key), list):
                if len(listed) != length or any(value != listed[0] for value in listed):
                    raise self._wrong(
                        key, listed, f"one value, or the same for each of {length} layers"
                    )
                values[key] = listed[0]
        return HfConfig(name=self.name, values=values)

    def section(self, key: str) -> HfConfig:
        """Return a nested object; an absent one is empty."""
        value = self._find(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return HfConfig(name=f"{self.name}: {key}", values=value or {})

    def _find(self, keys: str) -> Any:
        return next(
            (self.values[key] for key in keys.split("|") if self.values.get(key) is not None), None
        )

    def _wrong(self, keys: str, value: object, expected: str) -> ConfigError:
        key = next(key for key in keys.split("|") if self.values.get(key) is not None)
        return ConfigError(f"{self.name}: {key}={shown(value)}: expected {expected}")


def shown(value: object) -> str:
    """Return a value as messages show it: cut at 60 characters, and never a failure to print it."""
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):  # a number of thousands of digits, lists without end
        return f"a {type(value).__name__} too long to print"
