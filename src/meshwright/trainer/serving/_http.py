"""The part of OpenAI's protocol that a load needs: completions of token ids, streamed, with
usage."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from meshwright.errors import ConfigError
from meshwright.trainer.serving._engine import Engine

__all__ = ["serve"]

MODEL = "meshwright"
"""The name that requests carry."""
_KNOWN = {
    "model",
    "prompt",
    "max_tokens",
    "stream",
    "stream_options",
    "ignore_eos",
    "min_tokens",
    "temperature",
    "n",
    "seed",
}
_WATCH_S = 0.2


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    engine: Engine


def serve(engine: Engine, *, port: int) -> int:
    """Answer requests on 127.0.0.1 until the engine ends; return 1 then."""
    server = _Server(("127.0.0.1", port), _Handler)
    server.engine = engine
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while engine.alive:
        time.sleep(_WATCH_S)
    server.shutdown()
    return 1


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the log for what matters."""

    def do_GET(self) -> None:
        """Health, and the one model."""
        if self.path == "/health":
            self._send(
                HTTPStatus.OK if self.server.engine.alive else HTTPStatus.SERVICE_UNAVAILABLE, {}
            )
        elif self.path == "/v1/models":
            self._send(
                HTTPStatus.OK, {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
            )
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"no {self.path} here")

    def do_POST(self) -> None:
        """A completion."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v1/completions":
            self._refuse(HTTPStatus.NOT_FOUND, f"no {self.path} here")
            return
        try:
            self._complete(json.loads(body))
        except (ConfigError, ValueError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _complete(self, asked: Mapping[str, Any]) -> None:
        if unknown := sorted(set(asked) - _KNOWN):
            raise ConfigError(f"{unknown[0]}: not known here")
        if not asked.get("stream"):
            raise ConfigError("stream: answers are streamed here; ask with stream=true")
        prompt = asked.get("prompt")
        if not isinstance(prompt, list):
            raise ConfigError("prompt: expected a list of token ids; there is no tokenizer here")
        answer = self.server.engine.answer(prompt, max_tokens=int(asked.get("max_tokens", 16)))
        first = next(answer)  # what is wrong with a request is known before its status is sent
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = 0
        try:
            while first:
                count += len(first)
                self._event(
                    {"choices": [{"index": 0, "text": "".join(f" {token}" for token in first)}]}
                )
                first = next(answer, [])
        except RuntimeError as error:
            self._event({"error": {"message": str(error)}})
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "total_tokens": len(prompt) + count,
        }
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, content: Mapping[str, Any]) -> None:
        words = {"object": "text_completion", "model": MODEL, **content}
        self._chunk(f"data: {json.dumps(words)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, status: HTTPStatus, content: Mapping[str, Any]) -> None:
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _refuse(self, status: HTTPStatus, words: str) -> None:
        self._send(status, {"error": {"message": words}})
