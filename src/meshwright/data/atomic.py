"""Files that exist whole or not at all: a temporary name in the same folder, fsync of file and
folder, rename."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

from meshwright.errors import ConfigError

__all__ = ["create_once", "locked", "sync_folder", "temporary_of", "write_whole", "writing"]

_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
"""What flock says on file systems that are mounted without locks."""


def temporary_of(path: Path) -> Path:
    """Return the name of a file while it is written: always the same, so that a second start takes
    over what a kill left."""
    return path.with_name(f".{path.name}.part")


@contextmanager
def writing(path: Path, *, wait: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name when the block ends, with its bytes on the disk; a
    block that fails leaves none.

    Where another process is writing it: ConfigError, or with `wait` its turn comes first.
    """
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
    """Write a small file at once; of processes that do so side by side the last one's content
    stays."""
    with writing(path, wait=True) as handle:
        handle.write(content)


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[IO[bytes]]:
    """Open a file for reading and writing that no other process has open this way; the kernel frees
    it when the process ends.

    Where another has: ConfigError, or with `wait` its end is waited for. Where a file system has no
    locks this is an ordinary open.
    """
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
        raise ConfigError(
            f"{path}: another process is writing it; wait for it, or end it"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_same(handle: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), path.stat())
    except FileNotFoundError:
        return False


def create_once(path: Path, content: bytes) -> bool:
    """Give a file its content unless it exists: of many processes that try, one does, and all see
    its content whole."""
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
