"""Standard output and standard error of a command: no value of a secret passes."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import Any

from meshwright.platforms.hidden import hide

__all__ = ["HidingText", "hide_secrets"]


class HidingText(io.TextIOWrapper):
    """A stream of text that hides values of secrets, which are not cut by a line's end."""

    beneath: Any = None
    """The stream in whose place this one is: dropped, it would close what both write to."""

    def write(self, text: str) -> int:
        super().write(hide(text))
        return len(text)


def hide_secrets() -> None:
    """Put such a stream in the place of standard output; that of errors is one already."""
    old: Any = sys.stdout
    if isinstance(old, HidingText):
        return
    with suppress(OSError, ValueError, AttributeError):  # no stream, or none with a buffer
        new = HidingText(
            old.buffer,
            encoding=old.encoding,
            errors=old.errors,
            newline="\n",
            line_buffering=old.line_buffering,
        )
        new.beneath = old
        sys.stdout = new
