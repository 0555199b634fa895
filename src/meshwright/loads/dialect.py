"""Which words of OpenAI's protocol a server takes: what it refuses is left out, and said."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = ["Dialect", "Endpoint", "next_dialect"]

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
"""Statuses by which servers say that they don't take a request as it is; others are no matter of
words."""
_WORDS = (
    "one",
    "two",
    "red",
    "sun",
    "map",
    "tea",
    "car",
    "sky",
    "dog",
    "cup",
    "pen",
    "box",
    "hat",
    "key",
    "sea",
    "ice",
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
        optional = {
            "ignore_eos": True,
            "min_tokens": output_len,
            "stream_options": {"include_usage": True},
            "temperature": 0,
        }
        kept = {key: value for key, value in optional.items() if key not in self.left_out}
        return {
            "model": self.model,
            **self._prompt(ids),
            "max_tokens": output_len,
            "stream": True,
            **kept,
        }

    def _prompt(self, ids: Sequence[int]) -> dict[str, Any]:
        if self.endpoint == "/v1/completions" and self.prompt == "ids":
            return {"prompt": list(ids)}
        text = " ".join(_WORDS[token % len(_WORDS)] for token in ids)
        return (
            {"prompt": text}
            if self.endpoint == "/v1/completions"
            else {"messages": [{"role": "user", "content": text}]}
        )

    def notes(self) -> tuple[str, ...]:
        """Say what was left out, and what that means."""
        lost = [*self.left_out, *(["token ids"] if self.prompt == "text" else [])]
        lost += ["/v1/completions"] if self.endpoint != "/v1/completions" else []
        return tuple(f"the server refuses {name}: {_LOST[name]}" for name in lost)

    def to_dict(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "model": self.model,
            "endpoint": self.endpoint,
            "prompt": self.prompt,
            "left_out": list(self.left_out),
        }


def next_dialect(dialect: Dialect, *, status: int, answer: str) -> Dialect | None:
    """Return how to ask again after a refusal; None where nothing is left to leave out, or it was
    no matter of words.

    A field that the answer names goes first, else the least known of those left; then token ids,
    then the endpoint.
    """
    if status not in _REFUSED:
        return None
    if status in (404, 405, 501):
        return (
            replace(dialect, endpoint="/v1/chat/completions", prompt="text")
            if dialect.endpoint == "/v1/completions"
            else None
        )
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
