"""A client that sends a load to a server of OpenAI's protocol, and times what is streamed back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from meshwright.runs.loads.figures import Answer
from meshwright.runs.loads.load import Ask, Load
from meshwright.values.errors import ConfigError, MissingExtraError, ServerError

if TYPE_CHECKING:
    import httpx

__all__ = ["Dialect", "Target", "find_dialect", "find_model", "next_dialect", "send_load"]

Endpoint = Literal["/v1/completions", "/v1/chat/completions"]

_OPTIONAL = ("ignore_eos", "min_tokens", "stream_options", "temperature")
"""Fields that a server may refuse, the least known first: the two that keep an answer from ending
early are vLLM's, SGLang's and TensorRT-LLM's own; OpenAI's server and others answer with 400 or
422."""
_LOST = {
    "ignore_eos": "answers may end before they have their length",
    "min_tokens": "answers may end before they have their length",
    "stream_options": "tokens are counted by messages",
    "temperature": "tokens are drawn at the server's own temperature",
    "token ids": (
        "prompts are words, so their length is what the server says, about what was asked for"
    ),
    "/v1/completions": "prompts go through the model's chat template",
}
_REFUSED = (400, 404, 405, 422, 501)
"""Statuses by which servers say that they don't take a request as it is."""
_WORDS = (
    *("one", "two", "red", "sun", "map", "tea", "car", "sky"),
    *("dog", "cup", "pen", "box", "hat", "key", "sea", "ice"),
)
"""Each a token or two of usual vocabularies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """How a server is spoken to."""

    model: str
    endpoint: Endpoint = "/v1/completions"
    prompt: Literal["ids", "text"] = "ids"
    """`ids` gives prompts of exactly the length that was asked for."""
    left_out: tuple[str, ...] = ()

    def body(self, ids: Sequence[int], *, output_len: int) -> dict[str, Any]:
        """Return the request of one prompt."""
        asked = {"model": self.model, **self._prompt(ids), "max_tokens": output_len, "stream": True}
        values = (True, output_len, {"include_usage": True}, 0)
        optional = dict(zip(_OPTIONAL, values, strict=True))
        kept = {key: value for key, value in optional.items() if key not in self.left_out}
        return {**asked, **kept}

    def _prompt(self, ids: Sequence[int]) -> dict[str, Any]:
        if self.endpoint == "/v1/completions" and self.prompt == "ids":
            return {"prompt": list(ids)}
        text = " ".join(_WORDS[token % len(_WORDS)] for token in ids)
        if self.endpoint == "/v1/completions":
            return {"prompt": text}
        return {"messages": [{"role": "user", "content": text}]}

    def notes(self) -> tuple[str, ...]:
        """Say what was left out, and what that means."""
        lost = [*self.left_out, *(["token ids"] if self.prompt == "text" else [])]
        lost += ["/v1/completions"] if self.endpoint != "/v1/completions" else []
        return tuple(f"the server refuses {name}: {_LOST[name]}" for name in lost)

    def to_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {**asdict(self), "left_out": list(self.left_out)}


def next_dialect(dialect: Dialect, *, status: int, answer: str) -> Dialect | None:
    """Return how to ask again after a refusal; None where nothing is left to leave out, or it was
    no matter of words.

    A field that the answer names goes first, else the least known of those left; then token ids,
    then the endpoint.
    """
    if status not in _REFUSED:
        return None
    if status in (404, 405, 501):
        if dialect.endpoint == "/v1/completions":
            return replace(dialect, endpoint="/v1/chat/completions", prompt="text")
        return None
    left = [name for name in _OPTIONAL if name not in dialect.left_out]
    named = [name for name in left if name in answer]
    if named:
        return replace(dialect, left_out=(*dialect.left_out, *named))
    if dialect.prompt == "ids" and _of_the_prompt(answer):
        return replace(dialect, prompt="text")
    if left:
        return replace(dialect, left_out=(*dialect.left_out, left[0]))
    if dialect.prompt == "ids":
        return replace(dialect, prompt="text")
    return None


def _of_the_prompt(answer: str) -> bool:
    """Whether the refusal is of the prompt: a list where a text was expected."""
    try:
        content = json.loads(answer)
    except ValueError:
        content = None
    error = content.get("error", content) if isinstance(content, Mapping) else None
    parameter = error.get("param") if isinstance(error, Mapping) else None
    return parameter == "prompt" or "prompt" in answer.lower()


_MOST_WORDS = 300
"""Of what a server says, in a message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A server."""

    url: str
    """http://HOST:PORT"""
    model: str | None = None
    """As the server names it; None: the first that it lists."""
    vocab: int = 32000
    """Prompts are of random tokens below this, but for the first and the last sixteenth, where
    special tokens are."""
    key: str | None = None
    """Of an API that asks for one."""
    patience_s: float = 600.0
    """After which a request that says nothing has failed."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url={self.url}: expected http://HOST:PORT")
        if self.vocab < 2:
            raise ConfigError(f"vocab={self.vocab}: expected 2 tokens or more")
        if not self.patience_s > 0:
            raise ConfigError(
                f"patience_s={self.patience_s:g}: expected a positive number of seconds"
            )


@dataclass(slots=True)
class _Stream:
    """What has come of one answer so far."""

    sent_s: float
    times: list[float] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def feed(self, line: str, at_s: float) -> None:
        """Take one line of server-sent events."""
        if not line.startswith("data:") or (text := line[5:].strip()) == "[DONE]":
            return
        try:
            content = json.loads(text)
        except ValueError:
            self.error = f"a message that is no JSON: {text[:_MOST_WORDS]}"
            return
        if content.get("error"):
            self.error = _words(json.dumps(content["error"]))
        self.usage = content.get("usage") or self.usage
        if any(_has_token(choice) for choice in content.get("choices") or ()):
            self.times.append(at_s)

    def answer(self, ask: Ask) -> Answer:
        """Return what became of the request."""
        if self.error is None and not self.times:
            self.error = "an answer without a token"
        if self.error is not None:
            return Answer(sent_s=self.sent_s, error=self.error)
        return Answer(
            sent_s=self.sent_s,
            first_s=self.times[0],
            last_s=self.times[-1],
            gaps_s=tuple(later - earlier for earlier, later in pairwise(self.times)),
            prompt_tokens=int(self.usage.get("prompt_tokens") or ask.input_len),
            output_tokens=int(self.usage.get("completion_tokens") or len(self.times)),
        )


def _has_token(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    words = ("content", "reasoning_content", "reasoning")
    return bool(choice.get("text") or any(delta.get(word) for word in words))


def find_model(target: Target) -> str:
    """Return the first model that a server lists; ServerError where it does not answer."""
    httpx, url = _httpx(), f"{target.url.rstrip('/')}/v1/models"
    try:
        answer = httpx.get(
            url, headers=_headers(target), timeout=target.patience_s, trust_env=False
        )
        listed = [str(model["id"]) for model in answer.raise_for_status().json()["data"]]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(
            f"{target.url}: no list of models ({_error_words(error)}); is the server there?"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ServerError(
            f"{target.url}/v1/models: expected a list of models, as OpenAI's protocol has it"
        ) from None
    if not listed:
        raise ServerError(f"{target.url}/v1/models: lists no model; name one")
    return listed[0]


def find_dialect(target: Target, *, input_len: int = 8, output_len: int = 2) -> Dialect:
    """Ask until a request is taken, with fewer words each time; ServerError where none is."""
    return asyncio.run(_find_dialect(target, Ask(input_len=input_len, output_len=output_len)))


async def _find_dialect(target: Target, ask: Ask) -> Dialect:
    httpx = _httpx()
    dialect: Dialect | None = Dialect(model=target.model or find_model(target))
    words = ""
    async with _session(target, httpx) as session:
        while dialect is not None:
            ids = next(_prompts([ask], vocab=target.vocab, seed=0))
            body = dialect.body(ids, output_len=ask.output_len)
            try:
                answer = await session.post(dialect.endpoint, json=body)
            except httpx.HTTPError as error:
                raise ServerError(f"{target.url}: {_error_words(error)}") from None
            if answer.status_code == httpx.codes.OK:
                return dialect
            words = f"status {answer.status_code}: {_words(answer.text)}"
            dialect = next_dialect(dialect, status=answer.status_code, answer=answer.text)
    raise ServerError(f"{target.url}: takes no request of ours; the last was answered with {words}")


def send_load(target: Target, dialect: Dialect, load: Load) -> tuple[Answer, ...]:
    """Send a load and return an answer for each request, in their order, or why it failed."""
    return asyncio.run(_send(target, dialect, load))


async def _send(target: Target, dialect: Dialect, load: Load) -> tuple[Answer, ...]:
    prompts = list(_prompts(load.asks, vocab=target.vocab, seed=load.seed))
    answers: dict[int, Answer] = {}
    async with _session(target, _httpx()) as session:
        start = time.perf_counter()

        async def one(index: int) -> None:
            body = dialect.body(prompts[index], output_len=load.asks[index].output_len)
            answers[index] = await _ask(session, dialect, body, load.asks[index], start)

        if load.clients is None:
            sent = ((ask.sent_s or 0.0, one(index)) for index, ask in enumerate(load.asks))
            await asyncio.gather(*(_at(start, at_s, work) for at_s, work in sent))
        else:
            left = iter(range(len(load.asks)))

            async def client() -> None:
                for index in left:
                    await one(index)

            await asyncio.gather(*(client() for _ in range(load.clients)))
    return tuple(answers[index] for index in range(len(load.asks)))


async def _at(start: float, at_s: float, work: Any) -> None:
    await asyncio.sleep(max(0.0, start + at_s - time.perf_counter()))
    await work


async def _ask(
    session: httpx.AsyncClient, dialect: Dialect, body: Mapping[str, Any], ask: Ask, start: float
) -> Answer:
    httpx = _httpx()
    stream = _Stream(sent_s=time.perf_counter() - start)
    try:
        async with session.stream("POST", dialect.endpoint, json=body) as response:
            if response.status_code != httpx.codes.OK:
                said = (await response.aread()).decode(errors="replace")
                stream.error = f"status {response.status_code}: {_words(said)}"
            else:
                async for line in response.aiter_lines():
                    stream.feed(line, time.perf_counter() - start)
    except (httpx.HTTPError, httpx.StreamError) as error:
        stream.error = _error_words(error)
    return stream.answer(ask)


def _prompts(asks: Sequence[Ask], *, vocab: int, seed: int) -> Iterator[list[int]]:
    """Random tokens, other ones for each request: no prefix cache helps."""
    import numpy as np

    rng = np.random.default_rng([seed, 7])
    edge = vocab // 16
    for ask in asks:
        yield rng.integers(edge, max(edge + 1, vocab - edge), ask.input_len).tolist()


def _session(target: Target, httpx: Any) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(target.patience_s)
    # A server on this machine is asked itself, whatever proxy the environment names.
    return httpx.AsyncClient(  # type: ignore[no-any-return]
        base_url=target.url.rstrip("/"),
        headers=_headers(target),
        limits=limits,
        timeout=timeout,
        trust_env=False,
    )


def _headers(target: Target) -> dict[str, str]:
    return {} if target.key is None else {"Authorization": f"Bearer {target.key}"}


def _error_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _words(text: str) -> str:
    return " ".join(text.split())[:_MOST_WORDS]


def _httpx() -> Any:
    try:
        import httpx
    except ImportError:
        raise MissingExtraError("httpx", "serve") from None
    return httpx
