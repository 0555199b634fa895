"""Numbers as logs write them, with what must stand behind them."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["NUMBER", "count", "fields_by_bar", "number", "scaled"]

NUMBER = r"[-+]?(?:\d{1,18}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?|nan|inf)"
"""A float as Python writes it; bounded, so that no text makes it slow."""
_NUMBER = re.compile(NUMBER, re.IGNORECASE)
_SCALED = re.compile(rf"({NUMBER})([KMBTPE]?)", re.IGNORECASE)
_SIZES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def number(text: str | None) -> float | None:
    """Read a whole text as a number; None where it is none."""
    words = (text or "").strip()
    return float(words) if len(words) < 48 and _NUMBER.fullmatch(words) else None


def count(text: str | None) -> int:
    """Read a whole number; 0 where it is none."""
    words = (text or "").strip()
    return int(words) if len(words) < 16 and words.isascii() and words.isdecimal() else 0


def scaled(text: str | None) -> float | None:
    """Read a number with a suffix of thousands, `1.23K`; None where it is none."""
    words = (text or "").strip()
    found = _SCALED.fullmatch(words) if len(words) < 48 else None
    return float(found[1]) * _SIZES[found[2].upper()] if found else None


def fields_by_bar(text: str) -> Mapping[str, str]:
    """Read `name: value | name: value |` into a mapping, the last name and value only where a bar
    or a line's end stands behind them.

    A line that was cut short, or that another process wrote into, ends in the middle of a number:
    what has no end is left out.
    """
    parts = text.split("|")
    if not parts[-1].endswith("\n"):
        parts.pop()
    pairs = (part.rpartition(":") for part in parts)
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}
