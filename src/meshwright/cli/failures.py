"""What is said where the machine, and not the question, ends a command: disks, memory, texts."""

from __future__ import annotations

import errno
import select
import sys
from contextlib import suppress

__all__ = ["exit_code", "file_words", "limit_words", "reader_left"]

_MACHINE = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO),
        *(errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN),
    }
)
"""What the same command can go on from, once the machine has room again."""
_UNFINISHED = 3


def exit_code(error: BaseException) -> int:
    """Return 3 where the machine ended the work, a full disk or memory, and 2 where the question
    did. A refusal's cause tells: it is raised from the error that the machine answered."""
    while True:
        if isinstance(error, MemoryError):
            return _UNFINISHED
        if isinstance(error, OSError) and error.errno in _MACHINE:
            return _UNFINISHED
        cause = error.__cause__ or error.__context__
        if cause is None:
            return 2
        error = cause


def file_words(error: OSError) -> str:
    """Say which file could not be read or written, and why."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno == errno.ENOSPC:
        reason += "; make room, and give the same command again"
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
    """Whether the reader of this process's output or errors has closed its end, as `head` does."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a stream of a test, without a number
            poll.register(stream.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))


def _short(name: str, most: int = 120) -> str:
    return name if len(name) <= most else f"{name[:most]}..."
