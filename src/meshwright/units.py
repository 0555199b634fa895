"""Conversions between the units of people (GiB, GB/s, TFLOPS, days) and ours (bytes, seconds, FLOP, tokens)."""

from __future__ import annotations

import re

from meshwright.errors import ConfigError

__all__ = [
    "GB",
    "GBIT",
    "GIB",
    "MIB",
    "MICROSECOND",
    "TERA",
    "format_bytes",
    "format_count",
    "format_seconds",
    "parse_count",
]

GIB = 2**30
"""Bytes in one GiB."""
MIB = 2**20
"""Bytes in one MiB."""
GB = 10**9
"""Bytes in one GB (disks, link rates)."""
GBIT = 10**9 / 8
"""Bytes in one Gbit."""
TERA = 10**12
"""FLOP in one TFLOP."""
MICROSECOND = 1e-6

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def parse_count(text: str | int | float, *, name: str = "count") -> int:
    """Read `300B`, `15T`, `4k` or a plain number as an integer (decimal suffixes k, M, B or G, T)."""
    match = re.fullmatch(r"\s*([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([kKmMbBgGtT]?)\s*", str(text))
    if match is None:
        raise ConfigError(f"{name}={text}: expected a number such as 4096, 300B or 15T")
    return round(float(match[1].replace("_", "")) * _SUFFIXES[match[2].lower()])


def format_count(count: float) -> str:
    """Write a count in three significant digits with k, M, B or T."""
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.3g}"


def format_bytes(count: float) -> str:
    """Write bytes in GiB with one digit."""
    return f"{count / GIB:.1f} GiB"


def format_seconds(seconds: float) -> str:
    """Write a duration with a fitting unit."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
