"""A server that stands in for an engine: it speaks what it is told to, and answers at times that
are known."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(slots=True)
class Manners:
    """How it behaves."""

    first_s: float = 0.02
    each_s: float = 0.01
    refuses: tuple[str, ...] = ()
    """Fields that are answered with 422."""
    names_them: bool = True
    takes_ids: bool = True
    has_completions: bool = True
    ends_early_at: int | None = None
    """Answers have this many tokens, unless ignore_eos is asked for."""
    breaks_after: int | None = None
    """The connection is cut after this many tokens."""
    fails_with: int | None = None
    """Status of every request once `fails_from` were answered."""
    fails_from: int = 0
    per_message: int = 1
    seen: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    manners: Manners

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json(200, {"data": [{"id": "stand-in"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        how = self.manners
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/v1/completions" and not how.has_completions:
            return self._json(404, {"detail": "Not Found"})
        for name in how.refuses:
            if name in asked:
                words = f"Unexpected keys: {name}" if how.names_them else "bad request"
                return self._json(422, {"detail": words})
        if isinstance(asked.get("prompt"), list) and not how.takes_ids:
            return self._json(400, {"error": {"message": "expected a string", "param": "prompt"}})
        with how.lock:
            how.seen.append({**asked, "path": self.path})
            if how.fails_with is not None and len(how.seen) > how.fails_from:
                return self._json(how.fails_with, {"error": {"message": "out of pages"}})
            how.running += 1
            how.most_running = max(how.most_running, how.running)
        try:
            self._answer(asked)
        finally:
            with how.lock:
                how.running -= 1
        return None

    def _answer(self, asked: dict[str, Any]) -> None:
        how = self.manners
        count = asked["max_tokens"]
        if how.ends_early_at is not None and not asked.get("ignore_eos"):
            count = min(count, how.ends_early_at)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(how.first_s)
        chat = self.path.endswith("chat/completions")
        for start in range(0, count, how.per_message):
            if start:
                time.sleep(how.each_s)
            if how.breaks_after is not None and start >= how.breaks_after:
                self.close_connection = True
                self.connection.close()
                return
            text = "a" * min(how.per_message, count - start)
            self._event({"choices": [{"delta": {"content": text}} if chat else {"text": text}]})
        if asked.get("stream_options"):
            self._event({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": count}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, content: dict[str, Any]) -> None:
        self._chunk(f"data: {json.dumps(content)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def standing_in(manners: Manners) -> Iterator[str]:
    """Run it and give its URL."""
    handler = type("Handler", (_Handler,), {"manners": manners})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    # `python standin.py PORT [WORD]`: an engine that is started as a process; the word is how it
    # goes wrong.
    import os
    import subprocess
    import sys

    word = sys.argv[2] if len(sys.argv) > 2 else ""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"child {child.pid}", flush=True)
    if word == "exits":
        print("ValueError: tensor parallel size 3 does not divide 8 heads", flush=True)
        sys.exit(3)
    told = Manners(first_s=0.01, each_s=0.002)
    if word == "refuses":
        told.fails_with = 500

    class _Main(_Handler):
        manners = told

        def do_GET(self) -> None:
            if word == "never":
                self._json(503, {})
            else:
                super().do_GET()

        def _answer(self, asked: dict[str, Any]) -> None:
            if word == "dies" and self.manners.most_running >= 4:
                print(
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
                    flush=True,
                )
                os._exit(1)
            super()._answer(asked)

    class _Quick(ThreadingHTTPServer):
        request_queue_size = 64

    _Quick(("127.0.0.1", int(sys.argv[1])), _Main).serve_forever()
