"""Commands on a small disk that fills at a chosen moment.

Run as a program in a mount namespace of its own, where it may mount: it reads what to run as JSON
and prints as JSON what each start ended with. Every command is a fork of this process, so that a
start costs no import.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["LEVELS", "PAGE", "SIZE"]

PAGE = 4096
SIZE = 16 * 2**20
LEVELS = 3
"""Starts of a command: the disk fills at the start, in the middle, at the end."""
FILLER = "filler"
LATE_S = 120


def main() -> None:
    """Answer the questions on standard input, in this folder; `disk` is the small disk."""
    from meshwright.platforms.local import executor
    from meshwright.runs.training import launch

    executor._path = lambda: os.environ["PATH"]  # the torchrun of the test is on it
    launch.POLL_S = 0.05
    asked = json.load(sys.stdin)
    json.dump({name: _ask(**question) for name, question in asked.items()}, sys.stdout)


def _ask(words: Sequence[str], copied: Sequence[str], levels: int) -> dict[str, Any]:
    """Run a command where there is room, then with less and less of what it took, each time twice:
    on the full disk, and again when there is room."""
    with _disk(copied):
        before = _used()
        code, said = _run(words)
        whole: dict[str, Any] = {
            "code": code,
            "said": said,
            "files": _files(),
            "pages": _used() - before,
        }
    starts = []
    for free in sorted({whole["pages"] * level // levels for level in range(levels)}):
        with _disk(copied):
            _fill(leave=free)
            code, said = _run(words)
            left, torn = _files(), _torn()
            Path("disk", FILLER).unlink()
            again, said_again = _run(words)
            starts.append(
                {"free": free, "code": code, "said": said, "left": left, "again": again}
                | {"torn": torn, "said_again": said_again, "files": _files()}
            )
    with _disk(copied):
        _fill(leave=0)
        whole["unheard"] = _run(words, heard=False)[0]
    return whole | {"starts": starts}


@contextlib.contextmanager
def _disk(copied: Sequence[str]) -> Iterator[None]:
    system = ctypes.CDLL(None, use_errno=True)
    if system.mount(b"none", b"disk", b"tmpfs", 0, f"size={SIZE}".encode()):
        raise OSError(ctypes.get_errno(), "mount")
    try:
        for name in copied:
            Path("disk", name).write_bytes(Path(name).read_bytes())
        yield
    finally:
        system.umount2(b"disk", 2)  # MNT_DETACH: a child that lingers does not keep it


def _used() -> int:
    found = os.statvfs("disk")
    return (found.f_blocks - found.f_bfree) * found.f_frsize // PAGE


def _fill(*, leave: int) -> None:
    """Take all of the disk but some pages."""
    with Path("disk", FILLER).open("wb") as filler:
        left = os.statvfs("disk")
        os.posix_fallocate(filler.fileno(), 0, (left.f_bfree - leave) * left.f_frsize)


def _files() -> Mapping[str, str]:
    """Every file of the disk, with a digest of what it holds."""
    return {
        str(path.relative_to("disk")): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path("disk").rglob("*"))
        if path.is_file() and path.name != FILLER
    }


def _torn() -> list[str]:
    """Files under a name of their own that are no whole JSON, or end within a line."""
    return [
        str(path)
        for path in Path("disk").rglob("*")
        if path.is_file() and "/." not in f"/{path}" and not _is_whole(path)
    ]


def _is_whole(path: Path) -> bool:
    try:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
    except ValueError:
        return False
    lines = (".csv", ".yaml", ".jsonl", ".sh", ".html", ".prom")
    return path.suffix not in lines or path.read_bytes().endswith(b"\n")


def _run(words: Sequence[str], *, heard: bool = True) -> tuple[int, str]:
    """Run a command line as a process would, its errors in a pipe; with `heard` false nobody reads
    them."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        _become(words, read, write)
    os.close(write)
    if not heard:
        os.close(read)
    signal.alarm(LATE_S)
    said = b""
    while heard and (more := os.read(read, 1 << 16)):
        said += more
    if heard:
        os.close(read)
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status), said.decode()


def _become(words: Sequence[str], read: int, write: int) -> None:
    from meshwright.cli import main as command

    signal.alarm(0)
    os.close(read)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.dup2(write, 2)
    os.close(write)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    sys.argv = ["meshwright", *words]
    code = 70
    try:
        command()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 70
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
