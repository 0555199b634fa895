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
    "parse_number",
    "parse_tokens",
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
WEEK_S = 7 * DAY_S

_DURATION = (
    "a duration such as 30d, 10h, 1d12h, 23:30:00 (hours first), 5-00:00:00 or 4:23:30:00 (days"
    " first)"
)
_PARTS = re.compile(
    r"(?:([\d.]+)w(?:eeks?)?)?(?:([\d.]+)d(?:ays?)?)?(?:([\d.]+)h(?:ours?)?)?(?:(\d+)m)?(?:(\d+)s)?",
    re.IGNORECASE,
)
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d\d):(\d\d)")
_SLURM_CLOCK = re.compile(r"(\d+)-(\d+)(?::(\d\d))?(?::(\d\d))?")

_COUNT = re.compile(r"\s*([0-9][0-9_]*\.?[0-9]*(?:[eE][+-]?[0-9]+)?)\s*([kKmMbBgGtT]?)\s*")
_NUMBER = re.compile(
    r"([+-]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+|nan|inf)(?:e[+-]?[0-9]+)?)([kmbt]?)", re.IGNORECASE
)
FEWEST_TOKENS = 10**6
"""Fewer than one batch of any published training has; a slip of the keyboard."""
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
        raise ConfigError(
            f"{name}={text}: expected a number such as 4096, 300B or 15T{_plain_form(str(text))}"
        )
    return round(count)


def parse_number(text: str, *, name: str, whole: bool, thousand: int) -> int | float:
    """Read `8192`, `8k`, `-1` or `0.5`; `thousand` is what k stands for, 1000 or 1024."""
    found = _NUMBER.fullmatch(text.strip())
    example = "a whole number, such as 8192 or 8k" if whole else "a number, such as 0.5"
    if found is None:
        raise ConfigError(f"{name} {text}: expected {example}{_plain_form(text)}")
    size: int = thousand ** " kmbt".index(found[2].lower() or " ")
    if whole and found[1].lstrip("+-").isdecimal():
        return int(found[1]) * size
    number = float(found[1]) * size
    if whole and (not math.isfinite(number) or number != round(number)):
        raise ConfigError(f"{name} {text}: expected {example}")
    return round(number) if whole else number


def _plain_form(text: str) -> str:
    """Say how `8,192` is written."""
    is_grouped = re.fullmatch(r"[0-9]{1,3}(,[0-9]{3})+", text.strip()) is not None
    return f"; without commas: {text.strip().replace(',', '')}" if is_grouped else ""


def parse_tokens(text: str | int | float, *, name: str, least: int = FEWEST_TOKENS) -> int:
    """Read tokens to train on; ConfigError with what was probably meant below `least`."""
    tokens = parse_count(text, name=name)
    if tokens < 1:
        raise ConfigError(f"{name}={text}: expected 1 or more, such as 300B or 15T")
    if tokens < least:
        digits = str(text).strip().rstrip("kKmM")
        raise ConfigError(
            f"{name}={text}: {tokens} tokens are less than any training; did you mean"
            f" {digits}B or {digits}T?"
        )
    return tokens


def parse_duration(text: str, *, name: str = "duration") -> int:
    """Read a duration in whole seconds, in the forms of Base Command (`5D`, `1D12H`), Slurm
    (`5-00:00:00`) and clocks (`4:23:30:00`). A bare number and `2:30` are refused: Slurm reads the
    one as minutes and the other as minutes and seconds, other schedulers do not."""
    words = "".join(text.split())
    sizes: tuple[int, ...] = (WEEK_S, DAY_S, HOUR_S, MINUTE_S, 1)
    found = _PARTS.fullmatch(words)
    if found is None:
        found, sizes = _CLOCK.fullmatch(words) or _SLURM_CLOCK.fullmatch(words), sizes[1:]
    try:
        parts = [float(part or 0) for part in found.groups()] if found and words else []
    except ValueError:  # 1.2.3d
        parts = []
    seconds = round(sum(count * size for count, size in zip(parts, sizes, strict=False)))
    if seconds <= 0:
        raise ConfigError(f"{name}={text}: expected {_DURATION}{_units_for(words)}")
    return seconds


def _units_for(number: str) -> str:
    """Say what a number without a unit may have been meant to be."""
    is_bare = re.fullmatch(r"[0-9]+(\.[0-9]+)?", number) is not None
    return f"; did you mean {number}d (days) or {number}h (hours)?" if is_bare else ""


def format_count(count: float) -> str:
    """Write a count in three significant digits with k, M, B or T."""
    for suffix, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(count) >= 0.9995 * size:  # 999,700 is 1M in three digits, and not 1e+03k
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
    if seconds >= 0.9995:
        return f"{format_digits(seconds)} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} us"
