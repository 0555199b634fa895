"""Measure an engine: start it, put loads on it, end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import IO, Any

from meshwright.runs.loads.client import Dialect, Target, find_dialect, find_model, send_load
from meshwright.runs.loads.figures import Figures, Limits, figures_of
from meshwright.runs.loads.load import PORT, Ask, Line, Load, ServeJob
from meshwright.values.errors import MissingExtraError, ServerError

__all__ = [
    "EngineProcess",
    "MeasuredLoad",
    "free_port",
    "measure_engine",
    "measure_server",
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
    """One engine on one port; its output goes to this process's stderr, the last lines are kept."""

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
            why = error.strerror or error
            raise ServerError(f"{words[0]} could not be started: {why}") from None
        assert self._process.stdout is not None
        stdout = (self._process.stdout,)
        self._copier = threading.Thread(target=self._copy, args=stdout, daemon=True)
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
        """Return the seconds until it took requests; ServerError where it ended, or was late."""
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
        """End every process that it started, in any session: asked first, killed later."""
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
        """Running processes with its mark; ended ones wait for whoever adopted them."""
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


_WARM_CLIENTS = 8
"""Most requests of the warm-up, which goes before each load: pages are touched, graphs captured,
kernels chosen."""
_WATCH_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLoad:
    """One load and what was measured under it."""

    load: Load
    figures: Figures
    notes: tuple[str, ...] = ()
    """Words of the protocol that the server refuses."""


def measure_server(
    target: Target,
    loads: Sequence[Load],
    *,
    limits: Limits | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> tuple[MeasuredLoad, ...]:
    """Send loads to a running server and return what each saw; ServerError where it takes none."""
    named = target if target.model is not None else replace(target, model=find_model(target))
    dialect = find_dialect(named)
    found: list[MeasuredLoad] = []
    for load in loads:
        show(load.name)
        found.append(_measured(named, dialect, load, limits))
    return tuple(found)


def _measured(target: Target, dialect: Dialect, load: Load, limits: Limits | None) -> MeasuredLoad:
    send_load(target, dialect, _warm_up(load))
    figures = figures_of(send_load(target, dialect, load), limits=limits)
    return MeasuredLoad(load=load, figures=figures, notes=dialect.notes())


def _warm_up(load: Load) -> Load:
    """As many requests at a time as the load has, up to a few, with short answers."""
    at_once = min(load.clients or _WARM_CLIENTS, _WARM_CLIENTS, len(load.asks))
    asks = tuple(
        Ask(input_len=ask.input_len, output_len=min(ask.output_len, 4))
        for ask in load.asks[:at_once]
    )
    return Load(kind="concurrency", value=float(at_once), asks=asks, seed=load.seed + 1)


def measure_engine(job: ServeJob, *, write: Callable[[str], None]) -> bool:
    """Start an engine, send it its loads and write a line for each; return whether all were
    measured.

    Nothing that was started is left, whatever happens. A load under which the engine died, or
    refused every request, is a point that failed; those after it are not tried where it is gone.
    """

    def say(kind: Any, **content: Any) -> None:
        write(Line(kind=kind, content=content).text())

    port = free_port() if job.port is None else job.port
    say("starting", command=list(job.command), port=port)
    try:
        with running_engine(job.command, port=port, environment=job.environment) as engine:
            return _measure_loads(job, engine, say)
    except PortTaken as error:
        say("failed", failure_class="launcher_error", message=str(error), evidence=None)
    except ServerError as error:
        say("failed", failure_class="config_error", message=str(error), evidence=None)
    return False


def _measure_loads(job: ServeJob, engine: EngineProcess, say: Callable[..., None]) -> bool:
    target = Target(url=engine.url, model=job.model, vocab=job.vocab, patience_s=job.patience_s)
    try:
        ready_s = engine.wait_ready(job.health, seconds=job.ready_s)
        target = target if target.model is not None else replace(target, model=find_model(target))
        dialect = find_dialect(target)
    except ServerError as error:
        kind, last = "hang" if engine.ended() is None else "unknown", engine.last_words()
        say("failed", failure_class=kind, message=str(error), evidence=last)
        return False
    notes = list(dialect.notes())
    say("ready", ready_s=ready_s, model=target.model, dialect=dialect.to_dict(), notes=notes)
    done = 0
    for load in job.loads:
        why, figures = _under_load(engine, target, dialect, load, job.limits)
        words = {
            "name": load.name,
            "kind_of_load": load.kind,
            "value": load.value,
            "figures": figures.to_dict() if figures else None,
        }
        say("point", **words, error=why, evidence=engine.last_words() if why else None)
        done += why is None
        if engine.ended() is not None:
            break
    say("end", measured=done, asked=len(job.loads))
    return done == len(job.loads)


def _under_load(
    engine: EngineProcess, target: Target, dialect: Dialect, load: Load, limits: Limits
) -> tuple[str | None, Figures | None]:
    """Return why a load counts for nothing, and its figures where there are any.

    A dead engine refuses what comes after at once; one that lives but whose child hangs would keep
    requests waiting, so the load is sent from a thread and left alone once the engine is gone.
    """
    found: list[MeasuredLoad] = []
    broken: list[BaseException] = []

    def send() -> None:
        try:
            found.append(_measured(target, dialect, load, limits))
        except Exception as error:  # told below, in the thread that waits
            broken.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    while sender.is_alive() and engine.ended() is None:
        sender.join(_WATCH_S)
    if (how := engine.ended()) is not None:
        return f"the engine {how} under {load.name}", None
    if broken:
        raise broken[0]
    figures = found[0].figures
    if not figures.requests:
        time.sleep(_WATCH_S)  # an engine that is about to end may answer with errors first
        how = engine.ended()
        every = f"every request failed: {figures.first_error}"
        return f"the engine {how} under {load.name}" if how else every, figures
    if not figures.failed:
        return None, figures
    asked = figures.failed + figures.requests
    return f"{figures.failed} of {asked} requests failed: {figures.first_error}", figures
