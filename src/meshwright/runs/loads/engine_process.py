"""An inference engine as a process of its own: started, waited for, watched while it is under load,
and ended with all that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from meshwright.runs.loads.job import PORT
from meshwright.values.errors import MissingExtraError, ServerError

__all__ = [
    "MARK",
    "EngineProcess",
    "free_port",
    "running_engine",
]

MARK = "MESHWRIGHT_ENGINE"
"""A variable by which every process of an engine is known: torchrun and others give their workers
sessions of their own."""
_TICK_S = 0.1
_GRACE_S = 10.0
"""Between asking an engine to end and killing it."""
_KEPT_LINES = 40
_DRAIN_S = 1.0
"""Until the last lines of an engine that has ended are read."""


class EngineProcess:
    """One engine on one port; what it prints goes to this process's stderr, and its last lines are
    kept."""

    def __init__(
        self, command: Sequence[str], *, port: int, environment: Mapping[str, str]
    ) -> None:
        """Start it apart from this process's terminal; ServerError where that fails."""
        self._mark = f"{os.getpid()}-{time.time_ns()}"
        _marked(self._mark)  # what ends it is there before it starts
        _refuse_taken(port)
        words = [word.replace(PORT, str(port)) for word in command]
        self.port = port
        self.tail: deque[str] = deque(maxlen=_KEPT_LINES)
        try:
            self._process = subprocess.Popen(
                words,
                env={**os.environ, **environment, MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(
                f"{words[0]} could not be started: {error.strerror or error}"
            ) from None
        assert self._process.stdout is not None
        self._copier = threading.Thread(
            target=self._copy, args=(self._process.stdout,), daemon=True
        )
        self._copier.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def _copy(self, stream: IO[str]) -> None:
        for line in stream:
            self.tail.append(line.rstrip())
            sys.stderr.write(line)
            sys.stderr.flush()

    def ended(self) -> str | None:
        """Say how it ended; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._copier.join(_DRAIN_S)
        return (
            f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        )

    def last_words(self) -> str | None:
        """Return the last line that it printed."""
        return next((line for line in reversed(self.tail) if line.strip()), None)

    def wait_ready(self, health: str, *, seconds: float) -> float:
        """Return after how many seconds it took requests; ServerError where it ended, or did not in
        time."""
        try:
            import httpx
        except ImportError:
            raise MissingExtraError("httpx", "serve") from None
        start = time.monotonic()
        with httpx.Client(base_url=self.url, timeout=5.0, trust_env=False) as session:
            while (waited := time.monotonic() - start) < seconds:
                if (how := self.ended()) is not None:
                    raise ServerError(f"the engine {how} before it was ready")
                with suppress(httpx.HTTPError):
                    if session.get(health).status_code == httpx.codes.OK:
                        return time.monotonic() - start
                time.sleep(_TICK_S)
        raise ServerError(f"the engine was not ready after {waited:.0f} s: no 200 from {health}")

    def end(self) -> None:
        """End every process that it started, whatever session that is in: asked first, killed after
        a while."""
        for sent, seconds in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            deadline = time.monotonic() + seconds
            for number in (left := self._left()):
                with suppress(ProcessLookupError):
                    os.kill(number, sent)
            while left and time.monotonic() < deadline:
                time.sleep(_TICK_S)
                left = self._left()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._copier.join(_GRACE_S)
        if not self._copier.is_alive() and self._process.stdout is not None:
            self._process.stdout.close()

    def _left(self) -> list[int]:
        """Processes that run with its mark, by number; those that have ended wait for whoever
        adopted them."""
        self._process.poll()  # reaped as soon as it has ended
        return _marked(self._mark)


def _marked(mark: str) -> list[int]:
    try:
        import psutil
    except ImportError:
        raise MissingExtraError("psutil", "serve") from None
    found: list[int] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PortTaken(f"port {port} cannot be used: {error.strerror}") from None


class PortTaken(ServerError):
    """Another program listens where the engine was to."""


@contextmanager
def running_engine(
    command: Sequence[str], *, port: int, environment: Mapping[str, str]
) -> Iterator[EngineProcess]:
    """Start an engine and end it with the block, however that ends."""
    engine = EngineProcess(command, port=port, environment=environment)
    try:
        yield engine
    finally:
        engine.end()
