"""Serve the page on this machine's own address."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

from meshwright.errors import ConfigError, MissingExtraError
from meshwright.whatif.answer import Answers
from meshwright.whatif.state import query_of, read_state

__all__ = ["serve"]

ADDRESS = "127.0.0.1"
"""Nobody reaches it from another machine."""


def serve(
    answers: Answers, *, port: int = 0, state: str = "", ready: Callable[[str], None]
) -> None:
    """Serve until interrupted; `ready` is called once with the page's address, which shows `state`,
    a shared address or its query."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtraError("uvicorn", "ui") from None
    from meshwright.whatif.app import make_app

    query = _query(state)
    with _listen(port) as listener:
        config = uvicorn.Config(
            make_app(answers),
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        logging.getLogger("uvicorn.error").addFilter(
            lambda record: not server.should_exit
        )  # of answers that Ctrl-C cuts off
        ready(f"http://{ADDRESS}:{listener.getsockname()[1]}/{query}")
        server.run(sockets=[listener])


def _query(state: str) -> str:
    """Check a shared address before anything starts."""
    query = urlsplit(state).query if "?" in state else state
    pairs = parse_qsl(query, keep_blank_values=True)
    if state and "=" not in query:
        raise ConfigError(
            f"{state!r}: expected an address of this page, or its part behind '?', such as"
            " model=llama3-8b&cluster=h100:64"
        )
    words = query_of(read_state({name: value for name, value in pairs if name != "pin"}))
    pins = "".join(f"&pin={_quoted(value)}" for name, value in pairs if name == "pin")
    return f"?{words}{pins}" if words or pins else ""


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe=":,")


def _listen(port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port}: expected 1 to 65535, or 0 for any that is free")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
        listener.listen()  # before anybody is told: what a browser asks at once then waits
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--port {port}: {error.strerror or error}; without --port a free one is taken"
        ) from None
    return listener
