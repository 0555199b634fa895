"""transformers' continuous batching over one model, split by its plan for tensor parallelism where
there are several processes."""

from __future__ import annotations

import json
import math
import os
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
)
from transformers.distributed import DistributedConfig

from meshwright.values.errors import ConfigError

__all__ = ["Engine", "open_engine", "serve"]

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PAGE = 64
"""Tokens of a page of the cache."""
_CPU_TOKENS = 2048
"""Tokens of one iteration on CPUs: transformers would take all memory for the cache."""
_WAIT_S = 0.2
_NEVER = -1


class Engine:
    """The model and the thread of its iterations; requests pass through the first rank."""

    def __init__(self, model: Any, batching: Any, *, max_len: int) -> None:
        self.max_len = max_len
        self.vocab = int(model.config.vocab_size)
        ends = {"eos_token_id": _NEVER, "pad_token_id": 0}
        generation = GenerationConfig(max_new_tokens=16, do_sample=False, **ends)
        self._manager = model.init_continuous_batching(
            generation_config=generation, continuous_batching_config=batching
        )
        self._waiting: dict[str, queue.Queue[Any]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._manager.start()
        if self.leads:
            threading.Thread(target=self._hand_out, daemon=True).start()

    @property
    def leads(self) -> bool:
        """Whether this is the rank that takes requests."""
        return bool(self._manager.is_tp_driver)

    @property
    def alive(self) -> bool:
        return bool(self._manager.is_running())

    def follow(self) -> int:
        """Wait in a rank that takes no requests until iterations end."""
        while self.alive:
            time.sleep(_WAIT_S)
        return 1

    def answer(self, prompt: list[int], *, max_tokens: int) -> Iterator[list[int]]:
        """Give each iteration's new tokens; ConfigError without room, RuntimeError if it failed."""
        self._check(prompt, max_tokens)
        with self._lock:
            self._count += 1
            name = f"request-{self._count}"
            mailbox = self._waiting[name] = queue.Queue()
        try:
            words = {"request_id": name, "max_new_tokens": max_tokens, "eos_token_id": _NEVER}
            self._manager.add_request(prompt, streaming=True, **words)
            given = 0
            while True:
                found = self._next(mailbox)
                if found.error:
                    raise RuntimeError(str(found.error))
                new = list(found.generated_tokens[given:])
                given += len(new)
                if new:
                    yield new
                if found.is_finished():
                    return
        finally:
            with self._lock:
                self._waiting.pop(name, None)

    def _check(self, prompt: list[Any], max_tokens: int) -> None:
        known = (isinstance(token, int) and 0 <= token < self.vocab for token in prompt)
        if not prompt or not all(known):
            raise ConfigError(f"prompt: expected a list of token ids from 0 to {self.vocab - 1}")
        if max_tokens < 1 or len(prompt) + max_tokens > self.max_len:
            raise ConfigError(
                f"{len(prompt)} tokens and max_tokens={max_tokens}: expected {self.max_len}"
                " together at most"
            )

    def _next(self, mailbox: queue.Queue[Any]) -> Any:
        while True:
            try:
                return mailbox.get(timeout=_WAIT_S)
            except queue.Empty:
                if not self.alive:
                    raise RuntimeError("the engine has ended") from None

    def _hand_out(self) -> None:
        while self.alive:
            found = self._manager.get_result(timeout=_WAIT_S)
            if found is None:
                continue
            with self._lock:
                mailbox = self._waiting.get(found.request_id)
            if mailbox is not None:
                mailbox.put(found)


def open_engine(
    model: str,
    *,
    dtype: str,
    device: str,
    max_len: int,
    max_sequences: int,
    max_tokens: int | None,
    graphs: bool | None = None,
    shares: bool | None = None,
) -> Engine:
    """Load a model, or make one with random weights of a config.json, and start its iterations."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    where = _device(device)
    # as transformers wants it where graphs and collectives meet
    os.environ.setdefault("NCCL_GRAPH_MIXING_SUPPORT", "0")
    if ranks > 1:
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
    with _random(Path(model), dtype) if model.endswith(".json") else nullcontext(model) as folder:
        loaded = _load(folder, dtype, where, ranks)
    batching = _batching(
        where,
        max_len=max_len,
        max_sequences=max_sequences,
        max_tokens=max_tokens,
        graphs=graphs,
        shares=shares,
    )
    return Engine(loaded, batching, max_len=max_len)


def _device(word: str) -> torch.device:
    if word == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch sees no GPU here; device=cpu serves on the processor")
    if word == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _load(folder: str, dtype: str, device: torch.device, ranks: int) -> Any:
    words: dict[str, Any] = {"dtype": _DTYPES[dtype]}
    if device.type == "cpu":
        words["attn_implementation"] = "sdpa"
    if ranks > 1:
        words["distributed_config"] = DistributedConfig(tp_size=ranks)
        return AutoModelForCausalLM.from_pretrained(folder, **words).eval()
    return AutoModelForCausalLM.from_pretrained(folder, **words).to(device).eval()


def _batching(
    device: torch.device,
    *,
    max_len: int,
    max_sequences: int,
    max_tokens: int | None,
    graphs: bool | None,
    shares: bool | None,
) -> Any:
    """transformers sizes the cache on GPUs; on CPUs it is as large as requests need."""
    if graphs and device.type == "cpu":
        raise ConfigError("--graphs on: CUDA graphs need a GPU")
    words: dict[str, Any] = {
        "max_requests_per_batch": max_sequences,
        "allow_block_sharing": bool(shares),
        "use_cuda_graph": graphs,
    }
    if max_tokens is not None:
        words["max_batch_tokens"] = max_tokens
    if device.type == "cpu":
        words |= {"page_size": _PAGE}
        words["num_blocks"] = max_sequences * (math.ceil(max_len / _PAGE) + 1)
        words.setdefault("max_batch_tokens", _CPU_TOKENS)
    return ContinuousBatchingConfig(**words)


@contextmanager
def _random(config: Path, dtype: str) -> Iterator[str]:
    """A checkpoint of random weights: what splits weights reads files."""
    if not config.is_file():
        raise ConfigError(f"{config}: no such file")
    several = dist.is_initialized()
    makes = not several or dist.get_rank() == 0
    holder = [tempfile.mkdtemp(prefix="meshwright-weights-") if makes else ""]
    try:
        if makes:
            _write_random(config, Path(holder[0]), dtype)
        if several:
            dist.broadcast_object_list(holder, src=0)
        yield holder[0]
    finally:
        if several:
            dist.barrier()
        if makes:
            shutil.rmtree(holder[0], ignore_errors=True)


def _write_random(config: Path, folder: Path, dtype: str) -> None:
    shutil.copyfile(config, folder / "config.json")
    torch.manual_seed(0)
    shape = AutoConfig.from_pretrained(folder)
    made = AutoModelForCausalLM.from_config(shape, dtype=_DTYPES[dtype])
    made.save_pretrained(folder)
    count = sum(weight.numel() for weight in made.parameters())
    print(f"random weights: {count} parameters", file=sys.stderr, flush=True)


MODEL = "meshwright"
"""The name that requests carry."""
_KNOWN = "model prompt max_tokens stream stream_options ignore_eos min_tokens temperature n seed"
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
        if self.path == "/health":
            alive = self.server.engine.alive
            self._send(HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE, {})
        elif self.path == "/v1/models":
            models = [{"id": MODEL, "object": "model"}]
            self._send(HTTPStatus.OK, {"object": "list", "data": models})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"no {self.path} here")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/v1/completions":
            self._refuse(HTTPStatus.NOT_FOUND, f"no {self.path} here")
            return
        try:
            self._complete(json.loads(body))
        except (ConfigError, ValueError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _complete(self, asked: Mapping[str, Any]) -> None:
        if unknown := sorted(set(asked) - set(_KNOWN.split())):
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
                text = "".join(f" {token}" for token in first)
                self._event({"choices": [{"index": 0, "text": text}]})
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
