"""Conversions of people's units (GiB, GB/s, TFLOPS, days) to ours (bytes, seconds, FLOP)."""

from __future__ import annotations

import math
import re

from meshwright.values.errors import ConfigError

__all__ = [
    "DAY_S",
    "GB",
    "GBIT",
    "GIB",
    "HOUR_S",
    "KIB",
    "MIB",
    "MICROSECOND",
    "MINUTE_S",
    "TERA",
    "counted",
    "format_bytes",
    "format_count",
    "format_digits",
    "format_seconds",
    "parse_count",
    "parse_duration",
]

GIB = 2**30
"""Bytes in one GiB."""
KIB = 2**10
"""Bytes in one KiB."""
MIB = 2**20
"""Bytes in one MiB."""
GB = 10**9
"""Bytes in one GB (disks, link rates)."""
GBIT = 10**9 / 8
"""Bytes in one Gbit."""
TERA = 10**12
"""FLOP in one TFLOP."""
MICROSECOND = 1e-6
MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
DAY_S = 24 * HOUR_S

_DURATION = (
    "a duration such as 5D, 10h, 1d12h, 23:30:00 (hours first), 5-00:00:00 or 4:23:30:00 (days"
    " first)"
)
_PARTS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d\d):(\d\d)")
_SLURM_CLOCK = re.compile(r"(\d+)-(\d+)(?::(\d\d))?(?::(\d\d))?")

_COUNT = re.compile(r"\s*([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([kKmMbBgGtT]?)\s*")
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: `1 file`, `2,000 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def parse_count(text: str | int | float, *, name: str = "count") -> int:
    """Read `300B`, `15T`, `4k` or a plain number as an integer (decimal k, M, B or G, T)."""
    match = _COUNT.fullmatch(str(text))
    count = math.nan
    if match is not None:
        count = float(match[1].replace("_", "")) * _SUFFIXES[match[2].lower()]
    if not math.isfinite(count):
        raise ConfigError(f"{name}={text}: expected a number such as 4096, 300B or 15T")
    return round(count)


def parse_duration(text: str, *, name: str = "duration") -> int:
    """Read a duration in whole seconds, in the forms of Base Command (`5D`, `1D12H`), Slurm
    (`5-00:00:00`) and clocks (`4:23:30:00`). A bare number and `2:30` are refused: Slurm reads the
    one as minutes and the other as minutes and seconds, other schedulers do not."""
    words = text.strip()
    found = _PARTS.fullmatch(words) or _CLOCK.fullmatch(words) or _SLURM_CLOCK.fullmatch(words)
    parts = [int(part or 0) for part in found.groups()] if found and words else []
    seconds = sum(
        count * size for count, size in zip(parts, (DAY_S, HOUR_S, MINUTE_S, 1), strict=False)
    )
    if seconds <= 0:
        raise ConfigError(f"{name}={text}: expected {_DURATION}")
    return seconds


def format_count(count: float) -> str:
    """Write a count in three significant digits with k, M, B or T."""
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= size:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.3g}"


def format_bytes(count: float) -> str:
    """Write bytes in GiB with one digit."""
    return f"{count / GIB:,.1f} GiB"


def format_digits(number: float) -> str:
    """Write a number with three digits, or all before the point: no exponent where it is large."""
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"


def format_seconds(seconds: float) -> str:
    """Write a duration with a fitting unit."""
    if seconds >= 1:
        return f"{format_digits(seconds)} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
