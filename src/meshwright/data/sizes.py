"""Sizes of files as people write them."""

from __future__ import annotations

import re

from meshwright.errors import ConfigError
from meshwright.units import GB, GIB, MIB, TERA

__all__ = ["parse_size"]

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": GB,
    "tb": TERA,
    "pb": 10**15,
    "kib": 2**10,
    "mib": MIB,
    "gib": GIB,
    "tib": 2**40,
    "pib": 2**50,
}


def parse_size(text: str | int, *, name: str = "size") -> int:
    """Read `500MB`, `1.5GiB` or a number of bytes; ConfigError for anything else, a bare `16G`
    among it, which tools read in two ways."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", str(text))
    if found is None or found[2].lower() not in _UNITS:
        raise ConfigError(
            f"{name}={text}: expected a size such as 500MB, 2.5TB, 16GiB (1024^3) or a number of"
            " bytes"
        )
    return round(float(found[1]) * _UNITS[found[2].lower()])
