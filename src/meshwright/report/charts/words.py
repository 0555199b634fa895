"""Numbers as people read them."""

from __future__ import annotations

import math

__all__ = ["cell_words", "number"]


def number(value: float, *, digits: int = 3) -> str:
    """Write a number in so many significant digits, thousands set apart, never as 1e+05; what is
    not finite is a dash."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    whole = math.floor(math.log10(abs(value))) + 1
    if whole > 15 or whole < -4:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - whole)
    return f"{round(value, digits - whole) if whole > digits else value:,.{decimals}f}"


def cell_words(value: object, digits: int | None) -> str:
    """Write a cell of a table; what is missing is a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if digits is not None else str(value)
    return number(value, digits=digits or 4) if isinstance(value, float) else str(value)
