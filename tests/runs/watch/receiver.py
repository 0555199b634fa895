"""A server on this machine that keeps what is posted to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any


@dataclass
class Receiver:
    port: int = 0
    answers: list[int] = field(default_factory=list)
    """Of the next requests; 200 behind them."""
    got: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Path, headers and object of each request that was answered by 200."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [content for _, _, content in self.got]


@contextmanager
def receiver() -> Iterator[Receiver]:
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            code = found.answers.pop(0) if found.answers else 200
            if code == 200:
                found.got.append((self.path, dict(self.headers), content))
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        found.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
