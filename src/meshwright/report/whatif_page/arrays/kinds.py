"""Kinds of numbers: truth, whole number, fraction; their names as numpy's types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["AS", "KIND_OF", "TYPES", "bool_", "common", "float64", "int16", "int64", "uint8"]


class _Number:
    """A kind of number; called, it makes a plain one."""

    kind = "f"

    def __new__(cls, value: Any = 0) -> Any:
        return AS[cls.kind](value)


class float64(_Number):
    """Fractions."""


class int64(_Number):
    """Whole numbers."""

    kind = "i"


class int16(int64):
    """Whole numbers of 16 bits, in files."""


class uint8(int64):
    """Whole numbers of 8 bits, in files."""


class bool_(_Number):
    """Truths."""

    kind = "b"


AS: dict[str, Callable[[Any], Any]] = {"f": float, "i": int, "b": bool}
"""Makes a plain number of a kind."""
TYPES: dict[str, Any] = {"f": float64, "i": int64, "b": bool_}
KIND_OF: dict[Any, str] = {
    **{float: "f", int: "i", bool: "b"},
    **{kind: kind.kind for kind in (float64, int64, int16, uint8, bool_)},
}
_WIDTH = {"b": 0, "i": 1, "f": 2}


def common(*kinds: str) -> str:
    """The kind that holds all of them."""
    return max(kinds, key=_WIDTH.__getitem__)
