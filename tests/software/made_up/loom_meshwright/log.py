"""A loom's line of a step."""

from __future__ import annotations

import re

from meshwright.software.log import Collected, Report

__all__ = ["MARKS", "read_line"]

MARKS = ("[loom] step ",)
_STEP = re.compile(r"\[loom\] step (\d{1,9}) took (\d{1,9}\.\d{1,9}) s, loss (\d{1,9}\.\d{1,9})")


def read_line(line: str, found: Collected) -> None:
    """Read a line into what was found."""
    if match := _STEP.search(line):
        report = Report(step=int(match[1]), step_s=float(match[2]), loss=float(match[3]))
        found.add(line, report)
