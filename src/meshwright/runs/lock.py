"""One tuner at a time on a study's folder, also where the folder is on NFS.

The lock is a file that can be made once only, on NFS too, where flock may hold or not. It names its
holder and is touched every HEARTBEAT_S; the file server's own clock dates both the touch and the
file that a rival holds against it. A holder on this machine is looked up; one on another machine
counts as dead when its file was not touched for STALE_S.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from meshwright.runs.store import NO_LINKS
from meshwright.values.errors import StudyError

__all__ = ["HEARTBEAT_S", "STALE_S", "Holder", "Lock", "locked"]

HEARTBEAT_S = 10.0
STALE_S = 120.0
"""Twelve missed heartbeats: longer than NFS clients keep attributes (60 s by default)."""
_NAME = "lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class Holder:
    """Who holds a lock."""

    token: str
    """Of this one time of holding."""
    host: str
    pid: int
    started: str
    """Ticks at which the process began: another one may get its number later."""
    boot: str
    """The machine's boot and the process's family of numbers; with the host it says whether `pid`
    means anything here."""


def _holder() -> Holder:
    pid = os.getpid()
    return Holder(
        token=uuid4().hex, host=os.uname().nodename, pid=pid, started=_started(pid), boot=_boot()
    )


def _boot() -> str:
    boot = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with suppress(OSError):
        boot += "/" + os.readlink("/proc/self/ns/pid")
    return boot


def _started(pid: int) -> str:
    """Field 22 of /proc/PID/stat, the second word behind the command in brackets being the state;
    empty where there is no /proc."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A lock that this process holds."""

    path: Path
    token: str

    def require(self) -> None:
        """Return where it is still held; StudyError where somebody took this process for dead."""
        there = _read(self.path)
        if there is None or there.token != self.token:
            other = "nobody" if there is None else _words(there)
            raise StudyError(
                f"{self.path}: held by {other} now, who took this process for dead; start again to"
                " go on"
            )


@contextmanager
def locked(folder: Path) -> Iterator[Lock]:
    """Hold a study's lock; StudyError names who else does."""
    path, me = folder / _NAME, _holder()
    _take(path, me)
    lock, done = Lock(path=path, token=me.token), threading.Event()
    beating = threading.Thread(target=_beat, args=(lock, done), daemon=True)
    beating.start()
    try:
        yield lock
    finally:
        done.set()
        beating.join()
        _release(lock)


def _beat(lock: Lock, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_S):
        with suppress(OSError, StudyError):
            lock.require()
            os.utime(lock.path)


def _release(lock: Lock) -> None:
    there = _read(lock.path)
    if there is not None and there.token == lock.token:
        lock.path.unlink(missing_ok=True)


def _take(path: Path, me: Holder) -> None:
    while not _create(path, me):
        there = _read(path)
        if there is None:
            if path.exists() and not _is_stale(path):
                raise StudyError(f"{path}: being made by another process; try again in a moment")
        elif _is_alive(there, path):
            raise StudyError(
                f"{path.parent}: in use by {_words(there)}; wait for it, or end it there, and start"
                " again"
            )
        _remove(path, there, me)


def _create(path: Path, me: Holder) -> bool:
    """Make the file whole and at once: written beside, then linked, which fails where there is one.
    Without links: made, then written."""
    beside = path.with_name(f".{_NAME}.{me.token}")
    try:
        _write(beside, me)
        try:
            os.link(beside, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            _write(path, me)
    except FileExistsError:
        return False
    except OSError as error:
        raise StudyError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    return True


def _write(path: Path, me: Holder) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(handle, "w") as file:
        json.dump(asdict(me), file)


def _remove(path: Path, there: Holder | None, me: Holder) -> None:
    """Put a dead holder's file away; where it is a quicker rival's by now, put it back."""
    away = path.with_name(f".{_NAME}.old.{me.token}")
    try:
        path.rename(away)
    except FileNotFoundError:
        return
    moved = _read(away)
    if moved is not None and (there is None or moved.token != there.token):
        with suppress(OSError):
            os.link(away, path)
    away.unlink(missing_ok=True)


def _is_alive(there: Holder, path: Path) -> bool:
    if there.host == os.uname().nodename and there.boot == _boot():
        if there.started:
            return bool(_started(there.pid)) and _started(there.pid) == there.started
        return _signalled(there.pid)
    return not _is_stale(path)


def _signalled(pid: int) -> bool:
    """Whether there is such a process, on systems without /proc."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_stale(path: Path) -> bool:
    """Whether the file is older than STALE_S by the file server's clock, which dates a probe."""
    probe = path.with_name(f".{_NAME}.{uuid4().hex}")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime > STALE_S
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StudyError(f"{probe}: cannot be written ({error.strerror})") from None
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _words(there: Holder) -> str:
    return f"process {there.pid} on {there.host}"
