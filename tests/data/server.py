"""A web server that misbehaves as told: what a path does at its first requests, then it serves the
file."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Site:
    """Files by path, and what happens before they are served well."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.trouble: dict[str, list[str]] = defaultdict(list)
        self.asked: list[tuple[str, str | None]] = []
        """Path and Range of every request."""
        self.pages: dict[str, Any] = {}
        self.tags: dict[str, str] = {}
        self.url = ""

    def tag(self, path: str) -> str:
        return self.tags.get(path, f'"{hashlib.md5(self.files[path]).hexdigest()}"')


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path
            site.asked.append((path, self.headers.get("Range")))
            if path in site.pages:
                self.answer(200, json.dumps(site.pages[path]).encode(), {})
                return
            trouble = site.trouble[path].pop(0) if site.trouble[path] else ""
            word, _, value = trouble.partition(":")
            if word.isdecimal():
                self.answer(int(word), b"not now", {"Retry-After": value} if value else {})
            elif path not in site.files:
                self.answer(404, b"nothing here", {})
            elif word == "empty":
                self.answer(200, b"", {})
            elif word == "html":
                self.answer(200, b"<html>please wait</html>", {})
            elif word == "hang":
                time.sleep(float(value))
                self.close_connection = True
            else:
                self.serve(
                    path, half=word == "half", stall=float(value) if word == "stall" else 0.0
                )

        def serve(self, path: str, *, half: bool, stall: float) -> None:
            content, tag = site.files[path], site.tag(path)
            wanted = self.headers.get("Range")
            fresh = self.headers.get("If-Range") in (None, tag)
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and fresh else 0
            headers = {"ETag": tag}
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            body = content[begin:]
            self.send_response(206 if begin else 200)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if half or stall:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                time.sleep(stall)
                self.close_connection = True
                return
            self.wfile.write(body)

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def handle(self) -> None:
            with suppress(BrokenPipeError, ConnectionResetError):
                super().handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
