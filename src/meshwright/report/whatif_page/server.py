"""Serve the page on this machine's own address."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from meshwright.report.whatif_page.answers import Answers
from meshwright.report.whatif_page.files import PAGE_FILES, page_file
from meshwright.report.whatif_page.questions import QUESTIONS, reply
from meshwright.report.whatif_page.state import query_of, read_state
from meshwright.values.errors import ConfigError, MissingExtraError

__all__ = ["HOSTS", "make_app", "serve"]

HOSTS = ("127.0.0.1", "localhost")
"""Names under which a browser may ask. A page of somebody else whose name was bound to this address
(DNS rebinding) sends its own."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src"
        " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_OWN_ASKS = ("same-origin", "none", "")
"""Of Sec-Fetch-Site: the page itself, an address that was typed, or a program that is no
browser."""


def make_app(answers: Answers) -> Any:
    """Return the application for a server of ASGI."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.routing import Route

    routes = [
        Route("/", _file("index.html")),
        *(Route(f"/{name}", _file(name)) for name in PAGE_FILES if name != "index.html"),
        *(Route(f"/api/{name}", _answer(answers, name)) for name in QUESTIONS),
    ]
    guards = [Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS)), Middleware(_Guard)]
    return Starlette(routes=routes, middleware=guards)


class _Guard:
    """Refuses what another site's page asks, and sets headers that keep this page to itself."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import PlainTextResponse

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":  # the start and the end of the server
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        is_own = (
            asked.get("sec-fetch-site", "") in _OWN_ASKS
            or asked.get("sec-fetch-mode") == "navigate"
        )
        app = self._app if is_own else PlainTextResponse("asked by another site", status_code=403)
        await app(scope, receive, send_guarded)


def _file(name: str) -> Callable[[Any], Any]:
    from starlette.responses import Response

    content = page_file(name)

    async def endpoint(_request: Any) -> Any:
        return Response(content, media_type=PAGE_FILES[name])

    return endpoint


def _answer(answers: Answers, name: str) -> Callable[[Any], Any]:
    """An endpoint on a thread of its own: a search takes seconds, and the page asks on."""
    from starlette.responses import JSONResponse

    def endpoint(request: Any) -> Any:  # What is refused is an answer: browsers say others aloud.
        return JSONResponse(reply(answers, name, request.url.query))

    return endpoint


ADDRESS = "127.0.0.1"
"""Nobody reaches it from another machine."""


def serve(
    answers: Answers, *, port: int = 0, state: str = "", ready: Callable[[str], None]
) -> None:
    """Serve until interrupted; `ready` is called once with the address, which shows `state`."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtraError("uvicorn", "ui") from None

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
    return quote(text, safe=":,")


def _listen(port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port}: expected 1 to 65535, or 0 for any that is free")
    # With the protocol named, asyncio sends small answers at once (TCP_NODELAY).
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
