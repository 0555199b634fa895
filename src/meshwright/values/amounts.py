"""One rule of all requests for numbers: finite, in their range, no larger than software holds."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

from meshwright.values.errors import ConfigError

__all__ = ["MOST", "check_amounts"]

MOST = 2.0**63
"""Counts of the software that we write for are signed numbers of 64 bits; no amount in our units,
of tokens, bytes, seconds or dollars, comes near."""


def check_amounts(
    owner: object, names: Sequence[str], *, least: float | None = None, below: float = MOST
) -> None:
    """Refuse a field that is not a number from `least` (None: above 0) to below `below`, as NaN and
    infinities are not; None stands for a field that is not given. ConfigError names the field."""
    for name in names:
        value = getattr(owner, name)
        if value is None:
            continue
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if is_number and (value > 0 if least is None else value >= least) and value < below:
            continue
        wanted = "a positive number" if least is None else f"a number from {least:g}"
        limit = f" to below {below:g}" if below < MOST or (is_number and value >= MOST) else ""
        raise ConfigError(f"{name}={value}: expected {wanted}{limit}")
