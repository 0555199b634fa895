"""What an engine is told beside a deployment: how it batches, whether it records graphs, what it
drafts ahead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from meshwright.serving.clock import Speculation
from meshwright.serving.engine import Engine
from meshwright.serving.request import ServingRequest
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "AS_IT_IS",
    "SETTINGS",
    "Settings",
    "every_setting",
    "octaves_of",
    "priced_as",
    "read_setting",
    "said_setting",
    "settled",
    "unpriced",
]

ACCEPTED = 0.85
"""Chance that a drafted token is right, given that those before it are: DeepSeek-V3's second token
is accepted in 85 to 90 % (arXiv:2412.19437, section 5.4.3)."""
_SIZES = ("batched_tokens", "sequences", "drafted")
_SWITCHES = ("graphs", "chunked_prefill", "prefix_caching")
_WORDS: Mapping[str, bool] = {"on": True, "yes": True, "true": True} | {
    "off": False,
    "no": False,
    "false": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What one engine is told; None leaves it the engine's own default."""

    batched_tokens: int | None = None
    """Tokens of one iteration at most."""
    sequences: int | None = None
    """Requests that run at once on one attention rank."""
    graphs: bool | None = None
    """Whether iterations of running sequences are recorded as CUDA graphs."""
    chunked_prefill: bool | None = None
    """Whether a prompt may be cut over several iterations."""
    prefix_caching: bool | None = None
    """Whether pages of the cache that begin alike are shared."""
    drafted: int | None = None
    """Tokens that the model's own layers draft ahead; 0: none."""

    def __post_init__(self) -> None:
        for name, least in zip(_SIZES, (1, 1, 0), strict=True):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}={value}: expected {least} or more")

    @property
    def words(self) -> str:
        """`batched_tokens=2048,graphs=off`; empty where all is the engine's own."""
        return ",".join(f"{name}={said_setting(value)}" for name, value in self.told.items())

    @property
    def told(self) -> dict[str, Any]:
        """What is not the engine's own, by name."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in named if value is not None}


AS_IT_IS = Settings()
"""The engine's own defaults."""
SETTINGS = tuple(field.name for field in fields(Settings))
"""Names of all settings, each an axis of `serving tune`."""


def said_setting(value: bool | int | None) -> str | None:
    """Return `on`, `off` or a size, as `read_setting` takes it; None of the engine's own."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return None if value is None else str(value)


def read_setting(name: str, text: str) -> tuple[int, ...] | tuple[bool, ...]:
    """Read the values of one setting, `2048,8192` or `on,off`; ConfigError for any other."""
    if name not in SETTINGS:
        raise UnknownNameError("setting of an engine", name, SETTINGS)
    words = [word.strip().lower() for word in text.split(",")]
    if name in _SWITCHES:
        if any(word not in _WORDS for word in words):
            raise ConfigError(f"{name}={text}: expected on, off or both, as on,off")
        switches = tuple(_WORDS[word] for word in words)
        return _once(name, text, switches)
    if not all(word.isdecimal() for word in words):
        raise ConfigError(f"{name}={text}: expected whole numbers, such as 2048,8192")
    return _once(name, text, tuple(int(word) for word in words))


def _once(name: str, text: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise ConfigError(f"{name}={text}: a value occurs twice")
    return values


def every_setting(axes: Mapping[str, Sequence[Any]]) -> tuple[Settings, ...]:
    """Return every combination of the axes' values; the engine's own where there is none."""
    return tuple(
        Settings(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())
    )


def settled(engine: Engine, settings: Settings) -> Engine:
    """Return the engine as its settings make it, as far as the cost model knows of them: tokens of
    an iteration, sequences, graphs, whole prompts."""
    told = {
        "chunk_tokens": settings.batched_tokens,
        "max_sequences": settings.sequences,
        "graphs": settings.graphs,
        "whole_prompts": None if settings.chunked_prefill is None else not settings.chunked_prefill,
    }
    changes: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    return replace(engine, **changes)


def priced_as(request: ServingRequest, settings: Settings) -> ServingRequest:
    """Return what is to be priced of a request under some settings.

    Formula:  the engine as `settled`; with n drafted tokens the sum of ACCEPTED**i, i = 1 to n, of
              them are right
    """
    guess = request.speculation
    if settings.drafted is not None:
        right = sum(ACCEPTED**place for place in range(1, settings.drafted + 1))
        guess = Speculation(drafted=settings.drafted, accepted=right) if settings.drafted else None
    return replace(request, engine=settled(request.engine, settings), speculation=guess)


def unpriced(settings: Settings) -> tuple[str, ...]:
    """Return the settings that no price follows, or follows on an assumption alone: whole prompts
    in the steady state, shared prefixes of requests that share none, how many drafts are right."""
    names = ("chunked_prefill", "prefix_caching", "drafted")
    return tuple(name for name in names if getattr(settings, name) is not None)


def octaves_of(engine: Engine, settings: Settings) -> tuple[float, ...]:
    """Return how far the sizes lie from the engine's own, in doublings, one for each of
    `batched_tokens`, `sequences` and tokens of a step with drafts."""
    own = engine.chunk_tokens or settings.batched_tokens or 1
    return (
        math.log2((settings.batched_tokens or own) / own),
        math.log2((settings.sequences or engine.max_sequences) / engine.max_sequences),
        math.log2(1 + (settings.drafted or 0)),
    )
