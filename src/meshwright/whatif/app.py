"""The page's server: some files, and the answers as JSON. It writes nothing, and asks nobody
else."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

from meshwright.errors import ConfigError, MeshwrightError
from meshwright.whatif.answer import Answers
from meshwright.whatif.choices import choices_record
from meshwright.whatif.state import WhatIf, read_state

__all__ = ["HOSTS", "make_app"]

HOSTS = ("127.0.0.1", "localhost")
"""Names under which a browser may ask. A page of somebody else whose name was bound to this address
(DNS rebinding) sends its own."""
_KINDS = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
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

    asks: dict[str, Callable[[Any], dict[str, Any]]] = {
        "choices": lambda query: choices_record(),
        "price": lambda query: answers.price(_state(query)),
        "explain": lambda query: answers.explain(_state(query)),
        "plan": lambda query: answers.plan(_state(query)),
        "export": lambda query: answers.export(_state(query), to=query.get("to", "")),
        "difference": lambda query: answers.difference(_state(query), _other(query)),
    }
    routes = [
        Route("/", _file("index.html")),
        *(Route(f"/{name}", _file(name)) for name in _KINDS if name != "index.html"),
        *(Route(f"/api/{name}", _answer(ask)) for name, ask in asks.items()),
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

    text = (resources.files("meshwright.whatif") / "page" / name).read_bytes()

    async def endpoint(_request: Any) -> Any:
        return Response(text, media_type=_KINDS[name])

    return endpoint


def _answer(ask: Callable[[Any], dict[str, Any]]) -> Callable[[Any], Any]:
    """An endpoint on a thread: answers take milliseconds, or seconds for a search, and the page
    goes on asking meanwhile."""
    from starlette.responses import JSONResponse

    def endpoint(request: Any) -> Any:
        try:
            return JSONResponse(ask(request.query_params))
        except MeshwrightError as error:
            return JSONResponse(
                {"refused": " ".join(str(error).split())}
            )  # an answer: browsers complain aloud of other codes

    return endpoint


def _state(query: Any) -> WhatIf:
    names = WhatIf.__dataclass_fields__
    return read_state({name: query[name] for name in query if name in names})


def _other(query: Any) -> WhatIf:
    """The plan to compare with, as an address of its own."""
    from urllib.parse import parse_qsl

    if "other" not in query:
        raise ConfigError("other: expected the address of the plan to compare with")
    return read_state(dict(parse_qsl(query["other"], keep_blank_values=True)))
