"""Agreement among the processes of one run: rank 0 decides once, all others ask it.

A connection of TCP to the run's first node, with nothing but the standard library: a process that
is about to become the training program should not load torch first, and torch need not be there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meshwright.values.errors import ConfigError

__all__ = ["PORT_STEP", "Meeting", "agree"]

PORT_STEP = 1117
"""From the port where the training program will meet to ours: far enough not to be the next run's,
which users like to count up."""
_MOST_BYTES = 1 << 20
_ANSWER_S = 10.0
"""What one process may take to say who it is."""
_RETRY_S = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Meeting:
    """Who takes part, and where."""

    rank: int
    world_size: int
    address: str
    port: int
    run_words: tuple[str, ...]
    """What all processes must have been started with."""
    limit_s: float = 600.0

    @property
    def digest(self) -> str:
        """Return a mark of the words, by which processes of another run are told apart."""
        return hashlib.sha256(json.dumps([self.world_size, *self.run_words]).encode()).hexdigest()


def agree(meeting: Meeting, decide: Callable[[], Sequence[str]]) -> list[str]:
    """Return what rank 0 decides, on every rank; its error is raised everywhere, so that nobody
    waits for a run that never starts."""
    if meeting.world_size == 1:
        return list(decide())
    if meeting.rank == 0:
        return _decide_and_tell(meeting, decide)
    answer = _ask(meeting)
    if "error" in answer:
        raise ConfigError(f"rank 0 found no strategy: {answer['error']}")
    return [str(word) for word in answer["words"]]


def _decide_and_tell(meeting: Meeting, decide: Callable[[], Sequence[str]]) -> list[str]:
    """Listen before deciding, so that the others find somebody while the search runs."""
    with _listening(meeting) as server:
        try:
            words = list(decide())
        except ConfigError as error:
            _tell(meeting, server, {"error": str(error)})
            raise
        _tell(meeting, server, {"words": words})
    return words


@contextlib.contextmanager
def _listening(meeting: Meeting) -> Iterator[socket.socket]:
    try:
        server = socket.create_server(("", meeting.port), backlog=4096)
    except OSError as error:
        raise ConfigError(
            f"port {meeting.port} of rank 0 cannot be opened ({error.strerror}); name a free one by"
            " --exchange-port"
        ) from None
    with server:
        yield server


def _tell(meeting: Meeting, server: socket.socket, answer: dict[str, Any]) -> None:
    """Answer every other rank of the run once it has asked; who asks with other words gets told
    so."""
    waiting = set(range(1, meeting.world_size))
    end = time.monotonic() + meeting.limit_s
    while waiting:
        server.settimeout(max(end - time.monotonic(), 0.001))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            ranks = ", ".join(map(str, sorted(waiting)[:8]))
            raise ConfigError(
                f"{len(waiting)} of {meeting.world_size} processes never asked rank 0 (ranks"
                f" {ranks}); were they started?"
            ) from None
        with connection:
            connection.settimeout(_ANSWER_S)
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                asked = _receive(connection)
                if asked["digest"] != meeting.digest:
                    _send(
                        connection,
                        {"error": "this process was started with other arguments than rank 0"},
                    )
                    continue
                _send(connection, answer)
                if _receive(connection)["got"]:
                    waiting.discard(int(asked["rank"]))


def _ask(meeting: Meeting) -> dict[str, Any]:
    """Ask rank 0, again and again until it is there."""
    end = time.monotonic() + meeting.limit_s
    while time.monotonic() < end:
        try:
            with socket.create_connection(
                (meeting.address, meeting.port), timeout=_ANSWER_S
            ) as connection:
                _send(connection, {"digest": meeting.digest, "rank": meeting.rank})
                connection.settimeout(max(end - time.monotonic(), _ANSWER_S))
                answer = _receive(connection)
                _send(connection, {"got": True})
                return answer
        except (OSError, ValueError):
            time.sleep(_RETRY_S)
    where = f"{meeting.address}:{meeting.port}"
    advice = "open that port, or name another by --exchange-port"
    raise ConfigError(
        f"rank {meeting.rank}: no answer of rank 0 at {where} within {meeting.limit_s:g} s;"
        f" {advice}"
    )


def _send(connection: socket.socket, content: dict[str, Any]) -> None:
    connection.sendall(json.dumps(content).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """Return one line of JSON; ValueError where it is none, as from a stranger."""
    text = b""
    while not text.endswith(b"\n"):
        part = connection.recv(65536)
        text += part
        if not part or len(text) > _MOST_BYTES:
            raise ValueError("no line")
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("no object")
    return content
