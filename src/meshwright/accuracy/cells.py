"""One row of a table of measured runs, with the measurements taken out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.errors import ConfigError

__all__ = ["MEASURED", "Cells", "UnansweredError", "without_measurements"]

MEASURED = (
    "oom",
    "error",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "peak_mem_gib",
    "mem_other",
)
"""Columns that a prediction must not look at; `notes` may be read for what describes the layout,
`provenance` for its date alone."""
_UNREAD = (*MEASURED, "provenance")
_AS_OF = re.compile(r"(?<![0-9A-Za-z@])(20[12]\d)-?(0[1-9]|1[0-2])(?![0-9A-Za-z])")
"""A year and a month, as in `2024-12`, `202412` and `loss_202412_h100`, and not inside a commit's
name."""
_LARGEST = 2**50
"""Anything beyond is no count of chips, tokens or layers."""


class UnansweredError(ConfigError):
    """The row does not describe a run that can be predicted; the message is the reason, beginning
    with the column."""


def without_measurements(row: Mapping[str, str]) -> dict[str, str]:
    """Return the row's text cells, stripped, less the measured columns and those beyond the header;
    `as_of` is the month of its release, or of where it was published."""
    dates = (_AS_OF.search(row.get(column) or "") for column in ("release", "provenance"))
    as_of = next((f"{found[1]}-{found[2]}" for found in dates if found), "")
    return {k: v.strip() for k, v in row.items() if k not in _UNREAD} | (
        {"as_of": as_of} if as_of else {}
    )


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a row that may be read; a blank or absent one is None."""

    by_column: Mapping[str, str]

    def text(self, column: str) -> str | None:
        """Return the cell's text."""
        return self.by_column.get(column) or None

    def words(self, column: str) -> str:
        """Return the cell's text in lower case, empty where it is blank."""
        return self.by_column.get(column, "").lower()

    def number(self, column: str) -> float | None:
        """Return the cell as a positive number or zero; UnansweredError where it is none."""
        text = self.text(column)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < _LARGEST:
            raise UnansweredError(f"{column}: not a number that fits ({text[:40]!r})")
        return value

    def count(self, column: str) -> int | None:
        """Return the cell as a whole number of 1 or more; UnansweredError where it is none."""
        value = self.number(column)
        if value is None:
            return None
        if value < 1 or value != int(value):
            raise UnansweredError(
                f"{column}: expected a whole number of 1 or more, found"
                f" {self.by_column[column][:40]!r}"
            )
        return int(value)

    def match(self, column: str, pattern: str) -> re.Match[str] | None:
        """Search a pattern in the cell, ignoring case."""
        return re.search(pattern, self.by_column.get(column, ""), re.IGNORECASE)
