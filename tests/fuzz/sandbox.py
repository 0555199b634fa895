"""One command line in this process, kept from the network, other programs and other folders, and
judged: an exit code that is known, one line of error, no traceback, no number that is none."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import multiprocessing.util
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from meshwright.values.units import GIB

__all__ = ["Finding", "judge", "lock_in"]

KNOWN_CODES = (0, 1, 2, 3, 130)
REFUSED = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system", "os.kill")
NETWORK = ("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto")
MOST_SECONDS = 30
"""What one input may take of a processor: it is small."""
MOST_WAITING = 900
"""And by the clock, where it waits for what never comes."""
MOST_MEMORY = 6 * GIB
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is wrong with the end of a command; findings of one `kind` are one mistake."""

    kind: str
    detail: str


class _Late(BaseException):
    """An input took longer than any should; no handler of the tool catches it."""


def lock_in(folder: Path) -> None:
    """Let this process, for the rest of its life, start nothing, reach nothing, and write into one
    folder only. What is refused is refused as the machine would."""
    inside = (os.path.realpath(folder), "/dev/")

    def check(event: str, given: tuple[Any, ...]) -> None:
        if event in REFUSED:
            raise OSError(errno.EAGAIN, "no other programs in a fuzz")
        if event in NETWORK:
            raise OSError(errno.ENETUNREACH, "no network in a fuzz")
        if event == "open" and isinstance(given[0], str) and (given[2] or 0) & _WRITES:
            place = os.path.realpath(given[0])
            if not place.startswith(inside) and "__pycache__" not in place:
                raise PermissionError(errno.EACCES, "outside the folder of the fuzz", given[0])

    def refuse(*_: Any) -> NoReturn:
        raise OSError(errno.EAGAIN, "no other processes in a fuzz")

    def late(_: int, __: FrameType | None) -> NoReturn:
        raise _Late

    setattr(multiprocessing.util, "spawnv_passfds", refuse)  # noqa: B010  # its type is a function's
    setattr(time, "sleep", _interrupt)  # noqa: B010
    sys.modules["torch"] = None  # type: ignore[assignment]  # seconds of import, and of measuring
    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGPROF, late)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    sys.addaudithook(check)


def _interrupt(seconds: float) -> None:
    """Stand for a person who does not wait."""
    if seconds > 1:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    signal.alarm(MOST_WAITING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def judge(run: Callable[[Sequence[str]], int], words: Sequence[str]) -> tuple[int, Finding | None]:
    """Run a command line by `run`; return its exit code, and what is wrong with its end."""
    # As the streams of a process: standard output refuses half characters, and errors write them.
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="", write_through=True)
    err = io.TextIOWrapper(
        io.BytesIO(), "utf-8", "backslashreplace", newline="", write_through=True
    )
    try:
        with _alarm(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words)
    except _Late as error:
        return -1, Finding(
            kind=f"late: {_place(error)}", detail=f"over {MOST_SECONDS} s of a processor"
        )
    except SystemExit as error:
        return -1, Finding(kind=f"SystemExit: {_place(error)}", detail=str(error.code))
    except BaseException as error:  # that it came this far is the finding
        kind = f"{type(error).__name__}: {_place(error)}"
        return -1, Finding(kind=kind, detail="".join(traceback.format_exception(error)[-4:]))
    return code, _fault(code, words, _said(out), _said(err))


def _said(stream: io.TextIOWrapper) -> str:
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("utf-8", "replace")


def _fault(code: int, words: Sequence[str], out: str, err: str) -> Finding | None:
    errors = re.findall(r"^error: .*$", err, flags=re.MULTILINE)
    first = words[0] if words else ""
    if code not in KNOWN_CODES:
        return Finding(kind=f"exit {code}: {first}", detail=err)
    if "Traceback (most recent call last)" in out + err:
        return Finding(kind=f"traceback printed: {first}", detail=err)
    if code == 2 and (len(errors) != 1 or not err.endswith("\n")):
        return Finding(kind=f"{len(errors)} lines of error: {first}", detail=err or out[:300])
    if code == 2 and len(errors[0]) > 2000:
        return Finding(kind=f"an error of a page: {first}", detail=errors[0])
    if code == 3 and "not enough memory" in err:
        return Finding(kind=f"memory: {first}", detail=err)
    if "--json" in words and code == 0 and out.strip():
        return _none_number(out, first)
    return None


def _none_number(out: str, first: str) -> Finding | None:
    def refuse(word: str) -> NoReturn:
        raise ValueError(word)

    try:
        found = json.loads(out, parse_constant=refuse)
    except ValueError as error:
        try:
            [json.loads(line, parse_constant=refuse) for line in out.splitlines() if line]
        except ValueError:
            return Finding(kind=f"no JSON: {first}", detail=f"{error}\n{out[:300]}")
        return None
    bad = next(_infinite(found), None)
    return None if bad is None else Finding(kind=f"infinite: {first}", detail=bad)


def _infinite(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    )
    for key, inner in pairs:
        yield from _infinite(inner, f"{path}.{key}")


def _place(error: BaseException) -> str:
    """Return the last place in the tool itself, which tells one mistake from another."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/meshwright/" in frame.filename] or list(frames)
    last = ours[-1]
    return f"{last.filename.rpartition('/meshwright/')[2]}:{last.name}"
