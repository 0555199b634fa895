"""Files that exist whole or not at all: a temporary name, fsync of file and folder, rename."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self
from uuid import uuid4

from meshwright.data.workers import Place
from meshwright.values.errors import ConfigError
from meshwright.values.units import GB, GIB, MIB, TERA

__all__ = [
    "Journal",
    "create_once",
    "locked",
    "parse_size",
    "read_journals",
    "sync_folder",
    "temporary_of",
    "write_whole",
    "writing",
]

_UNITS = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": GB, "tb": TERA, "pb": 10**15},
    **{"kib": 2**10, "mib": MIB, "gib": GIB, "tib": 2**40, "pib": 2**50},
}


def parse_size(text: str | int, *, name: str = "size") -> int:
    """Read `500MB`, `1.5GiB` or bytes; ConfigError for others, as the ambiguous `16G`."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", str(text))
    if found is None or found[2].lower() not in _UNITS:
        raise ConfigError(
            f"{name}={text}: expected a size such as 500MB, 2.5TB, 16GiB (1024^3) or a number of"
            " bytes"
        )
    return round(float(found[1]) * _UNITS[found[2].lower()])


_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
"""What flock says on file systems that are mounted without locks."""


def temporary_of(path: Path) -> Path:
    """Return a file's name while it is written; a second start takes over what is there."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def writing(path: Path, *, wait: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name when the block ends, its bytes on the disk; a
    failed block leaves none. Where another process is writing it: ConfigError, or with `wait` its
    turn comes first."""
    beside = temporary_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(beside, wait=wait) as handle:
        handle.truncate(0)
        try:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
            beside.replace(path)
        except Exception:
            beside.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file at once; of several processes the last one's content stays."""
    with writing(path, wait=True) as handle:
        handle.write(content)


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for reading and writing that no other process has open this way; the kernel frees
    it when the process ends. Where another has: ConfigError, or with `wait` its end is waited for.
    Where a file system has no locks this is an ordinary open."""
    while True:
        handle = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=1 << 20)
        try:
            _lock(handle, path, wait=wait)
            if _is_same(handle, path):
                break
        except BaseException:
            handle.close()
            raise
        # the other process finished and renamed it while this one waited for the lock
        handle.close()
    with handle:
        yield handle


def _lock(handle: IO[bytes], path: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(handle.fileno(), fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        reason = "another process is writing it; wait for it, or end it"
        raise ConfigError(f"{path}: {reason}") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_same(handle: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def create_once(path: Path, content: bytes) -> bool:
    """Give a file its content unless it exists: one process does, and all see its content whole."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with beside.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.link(beside, path)
    except FileExistsError:
        return False
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """Put a folder's names on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Journal:
    """The file of one process; every start opens a new one, so it has one writer, also on NFS."""

    def __init__(self, folder: Path, place: Place) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._handle = _open_new(folder, f"rank{place.rank}of{place.world_size}")
        sync_folder(folder)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record; it is on the disk when this returns."""
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
        self._handle.write(f"{line}\n".encode("utf-8", "surrogateescape"))
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._handle.close()
        if not self.path.stat().st_size:
            self.path.unlink()


def _open_new(folder: Path, stem: str) -> tuple[Path, IO[bytes]]:
    number = len(list(folder.glob(f"{stem}-*.jsonl")))
    while True:
        path = folder / f"{stem}-{number}.jsonl"
        try:
            return path, path.open("xb")
        except FileExistsError:
            number += 1


def read_journals(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of all processes, each file's in its order; a last line that a kill tore is
    left out. ConfigError where any other line is no record, since that is damage and not a kill."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.endswith(b"\n"):
                    break
                yield _record(line, path, number)


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape"))
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise ConfigError(
            f"{path}:{number}: no record of a step; the file is damaged: remove it, and its shards"
            " are done again"
        )
    return record
