"""One training at a time in a folder of checkpoints."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from meshwright.errors import ConfigError

__all__ = ["held"]

_FILE = ".in-use"
_WAIT_S = 10.0
"""A training that goes on where one was killed may start before the system has taken down the
other."""


@contextmanager
def held(folder: Path, *, wait_s: float = _WAIT_S) -> Iterator[None]:
    """Hold a folder that is there; ConfigError where another training has it for longer than
    `wait_s`.

    The system frees it with the process, however that ends. A file system without locks is taken as
    free.
    """
    path, until = folder / _FILE, monotonic() + wait_s
    file = _opened(path)
    while not _taken(file, path):
        os.close(file)
        if monotonic() > until:
            raise ConfigError(
                f"save.folder={folder}: another training writes there; end it, or give another"
                " folder"
            )
        sleep(0.1)
        file = _opened(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"save.folder={path.parent}: {error.strerror}") from None


def _taken(file: int, path: Path) -> bool:
    """Lock the file; not where another holds it, nor where its holder has removed it since."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    try:
        return path.stat().st_ino == os.fstat(file).st_ino
    except FileNotFoundError:
        return False
