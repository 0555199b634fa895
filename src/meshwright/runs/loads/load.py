"""A load: which requests are sent to a server, and when."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from meshwright.values.errors import ConfigError

__all__ = [
    "Ask",
    "Lengths",
    "Load",
    "closed_loop",
    "load_of",
    "poisson",
    "read_trace",
    "trace_load",
]

LoadKind = Literal["concurrency", "rate", "trace"]
"""concurrency: clients that each wait for their answer; rate: Poisson arrivals; trace: at given
times."""
_LONGEST = 2**20
_MOST_REQUESTS = 10**6


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request."""

    input_len: int
    output_len: int
    sent_s: float | None = None
    """After the start of the load; None: when a client is free."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Tokens of prompts and answers."""

    input_len: int
    output_len: int
    spread: float = 0.0
    """Lengths lie evenly within this share of the mean on both sides."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len"):
            if not 1 <= getattr(self, name) <= _LONGEST:
                raise ConfigError(f"{name}={getattr(self, name)}: expected 1 to {_LONGEST} tokens")
        if not 0 <= self.spread < 1:
            raise ConfigError(f"spread={self.spread}: expected 0 or more and less than 1")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: expected 0 or more")

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return math.ceil(self.input_len * (1 + self.spread)) + math.ceil(
            self.output_len * (1 + self.spread)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Requests in the order in which they are sent."""

    kind: LoadKind
    value: float | None
    """Clients, or requests a second; None of a trace."""
    asks: tuple[Ask, ...]
    seed: int = 0
    """Of the prompts' tokens."""

    def __post_init__(self) -> None:
        if not self.asks:
            raise ConfigError("a load needs one request at least")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: expected 0 or more")

    @property
    def name(self) -> str:
        """`concurrency=8`, `rate=2`, `trace`."""
        return self.kind if self.value is None else f"{self.kind}={self.value:g}"

    @property
    def clients(self) -> int | None:
        """Requests under way at most; None where they are sent at their times whatever is under
        way."""
        return int(self.value or 1) if self.kind == "concurrency" else None

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return max(ask.input_len + ask.output_len for ask in self.asks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain types; `load_of` reads them back."""
        return asdict(self)


def load_of(content: Mapping[str, Any]) -> Load:
    """Read a load back from plain types."""
    return Load(**{**content, "asks": tuple(Ask(**ask) for ask in content["asks"])})


def closed_loop(concurrency: int, lengths: Lengths, *, requests: int | None = None) -> Load:
    """Return a load of clients that each send the next request when the last is answered.

    Four requests a client, and eight at least, where nothing else is said: the first and the last
    of them run beside fewer others.
    """
    if not 1 <= concurrency <= _MOST_REQUESTS:
        raise ConfigError(f"concurrency={concurrency}: expected 1 client or more")
    count = max(4 * concurrency, 8) if requests is None else _checked(requests)
    if count < concurrency:
        raise ConfigError(f"requests={count}: fewer than the {concurrency} clients")
    return Load(
        kind="concurrency", value=float(concurrency), asks=_asks(lengths, count), seed=lengths.seed
    )


def poisson(rate: float, lengths: Lengths, *, requests: int | None = None) -> Load:
    """Return a load of requests that arrive at random times, `rate` a second on average; as many as
    a minute brings, and 16 at least."""
    import numpy as np

    if not 0 < rate < math.inf:
        raise ConfigError(f"rate={rate}: expected a positive number of requests per second")
    count = max(math.ceil(60.0 * rate), 16) if requests is None else _checked(requests)
    gaps = np.random.default_rng(lengths.seed + 1).exponential(1.0 / rate, count)
    times = (np.cumsum(gaps) - gaps[0]).tolist()
    asks = tuple(
        replace(ask, sent_s=at) for ask, at in zip(_asks(lengths, count), times, strict=True)
    )
    return Load(kind="rate", value=float(rate), asks=asks, seed=lengths.seed)


def trace_load(rows: Sequence[tuple[float, int, int]], *, seed: int = 0) -> Load:
    """Return a load of (seconds, tokens of the prompt, tokens of the answer); the first is sent at
    once."""
    ordered = sorted(rows)
    start = ordered[0][0] if ordered else 0.0
    asks = tuple(
        Ask(input_len=prompt, output_len=answer, sent_s=at - start)
        for at, prompt, answer in ordered
    )
    return Load(kind="trace", value=None, asks=asks, seed=seed)


def read_trace(path: Path, *, seed: int = 0) -> Load:
    """Read a CSV with sent_s, input_len and output_len; ConfigError names the line that is none of
    a request."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
    found: list[tuple[float, int, int]] = []
    for number, row in enumerate(rows, start=2):
        try:
            at, prompt, answer = float(row["sent_s"]), int(row["input_len"]), int(row["output_len"])
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{path}: line {number}: expected numbers in the columns sent_s, input_len and"
                " output_len"
            ) from None
        if not (math.isfinite(at) and 1 <= prompt <= _LONGEST and 1 <= answer <= _LONGEST):
            raise ConfigError(
                f"{path}: line {number}: expected a time, and 1 to {_LONGEST} tokens of prompt and"
                " answer"
            )
        found.append((at, prompt, answer))
    if not found:
        raise ConfigError(f"{path}: expected one request at least")
    return trace_load(found, seed=seed)


def _checked(requests: int) -> int:
    if not 1 <= requests <= _MOST_REQUESTS:
        raise ConfigError(f"requests={requests}: expected 1 to {_MOST_REQUESTS}")
    return requests


def _asks(lengths: Lengths, count: int) -> tuple[Ask, ...]:
    import numpy as np

    rng = np.random.default_rng(lengths.seed)
    drawn = [
        np.maximum(np.rint(mean * (1 + lengths.spread * rng.uniform(-1, 1, count))), 1)
        .astype(int)
        .tolist()
        for mean in (lengths.input_len, lengths.output_len)
    ]
    return tuple(
        Ask(input_len=prompt, output_len=answer) for prompt, answer in zip(*drawn, strict=True)
    )
