"""What is said where the machine, and not the question, ends a command: disks, memory, texts."""

from __future__ import annotations

import errno
import io
import select
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from meshwright.cli.streams import HidingText

__all__ = ["advice", "exit_code", "file_words", "let_go_of_errors", "limit_words", "reader_left"]

_MACHINE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
        *(errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN),
    }
)
"""What the same command can go on from, once the machine has room again."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNFINISHED = 3


def exit_code(error: BaseException) -> int:
    """Return 3 where the machine ended the work, a full disk or memory, and 2 where the question
    did. A refusal's cause tells: it is raised from the error that the machine answered."""
    ended = any(
        isinstance(one, MemoryError) or (isinstance(one, OSError) and one.errno in _MACHINE)
        for one in _chain(error)
    )
    return _UNFINISHED if ended else 2


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it was raised from, to the first."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def advice(error: BaseException, said: str) -> str:
    """Say what to do about a full disk, where the sentence does not say it already."""
    full = any(isinstance(one, OSError) and one.errno in _FULL for one in _chain(error))
    return "; make room, and give the same command again" if full and "again" not in said else ""


def file_words(error: OSError) -> str:
    """Say which file could not be read or written, and why."""
    reason = error.strerror or str(error) or type(error).__name__
    name = "" if error.filename is None else f"{_short(str(error.filename))}: "
    return f"{name}{reason}"


def limit_words(error: RecursionError | MemoryError | UnicodeError) -> str:
    """Say which limit of this machine, or of texts, the input is beyond."""
    if isinstance(error, RecursionError):
        return "the input is nested too deeply to be read"
    if isinstance(error, MemoryError):
        return "there is not enough memory on this machine for that"
    return f"a text that is not UTF-8 ({error})"


def reader_left() -> bool:
    """Whether the reader of this process's output has closed its end, as `head` does."""
    poll = select.poll()
    with suppress(OSError, ValueError):  # a stream of a test, without a number
        poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))


class _Unheard(io.FileIO):
    """A stream that takes what it cannot pass on: nobody reads it, or its disk is full."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def let_go_of_errors() -> None:
    """Let a command outlive the reader of its progress and errors: its work and its exit code do
    not hang on whether they can be said."""
    old = sys.stderr
    with suppress(OSError, ValueError, AttributeError):  # no stream, or none with a number
        raw = _Unheard(old.fileno(), "w", closefd=False)
        sys.stderr = HidingText(
            io.BufferedWriter(raw),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=True,
            write_through=True,
        )


def _short(name: str, most: int = 120) -> str:
    return name if len(name) <= most else f"{name[:most]}..."
