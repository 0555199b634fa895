"""A load, and the job that puts several on an engine."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from meshwright.runs.loads.figures import Limits
from meshwright.values.errors import ConfigError

__all__ = [
    "MARK",
    "PORT",
    "Ask",
    "Lengths",
    "Line",
    "Load",
    "ServeJob",
    "closed_loop",
    "line_of",
    "load_of",
    "poisson",
    "read_serve_job",
    "read_trace",
]

LoadKind = Literal["concurrency", "rate", "trace"]
"""concurrency: clients that wait for answers; rate: Poisson arrivals; trace: at given times."""
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
        lengths = (self.input_len, self.output_len)
        return sum(math.ceil(length * (1 + self.spread)) for length in lengths)


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
        """Requests under way at most; None where they are sent at their times, come what may."""
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
    asks, clients = _asks(lengths, count), float(concurrency)
    return Load(kind="concurrency", value=clients, asks=asks, seed=lengths.seed)


def poisson(rate: float, lengths: Lengths, *, requests: int | None = None) -> Load:
    """Return a load of requests that arrive at random times, `rate` a second on average; as many as
    a minute brings, and 16 at least."""
    import numpy as np

    if not 0 < rate < math.inf:
        raise ConfigError(f"rate={rate}: expected a positive number of requests per second")
    count = max(math.ceil(60.0 * rate), 16) if requests is None else _checked(requests)
    gaps = np.random.default_rng(lengths.seed + 1).exponential(1.0 / rate, count)
    sent = zip(_asks(lengths, count), (np.cumsum(gaps) - gaps[0]).tolist(), strict=True)
    asks = tuple(replace(ask, sent_s=at) for ask, at in sent)
    return Load(kind="rate", value=float(rate), asks=asks, seed=lengths.seed)


def trace_load(rows: Sequence[tuple[float, int, int]], *, seed: int = 0) -> Load:
    """Return a load of (seconds, tokens of prompt, tokens of answer); the first is sent at once."""
    ordered = sorted(rows)
    start = ordered[0][0] if ordered else 0.0
    asks = tuple(
        Ask(input_len=prompt, output_len=answer, sent_s=at - start)
        for at, prompt, answer in ordered
    )
    return Load(kind="trace", value=None, asks=asks, seed=seed)


def read_trace(path: Path, *, seed: int = 0) -> Load:
    """Read a CSV with sent_s, input_len and output_len, or a trace as services publish them;
    ConfigError names a line that is wrong."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            if stream.readline().lstrip().startswith(_PUBLISHED):
                return _published(path, seed)
            stream.seek(0)
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read ({why})") from None
    found: list[tuple[float, int, int]] = []
    for number, row in enumerate(rows, start=2):
        line = f"{path}: line {number}"
        try:
            at, prompt, answer = float(row["sent_s"]), int(row["input_len"]), int(row["output_len"])
        except (KeyError, TypeError, ValueError):
            columns = "sent_s, input_len and output_len"
            raise ConfigError(f"{line}: expected numbers in the columns {columns}") from None
        if not (math.isfinite(at) and 1 <= prompt <= _LONGEST and 1 <= answer <= _LONGEST):
            raise ConfigError(
                f"{line}: expected a time, and 1 to {_LONGEST} tokens of prompt and answer"
            )
        found.append((at, prompt, answer))
    if not found:
        raise ConfigError(f"{path}: expected one request at least")
    return trace_load(found, seed=seed)


_PUBLISHED = ("{", "TIMESTAMP,", "Timestamp,")
"""How the first line of a published trace begins."""


def _published(path: Path, seed: int) -> Load:
    from meshwright.runs.loads.traces import read_traffic

    found = read_traffic(path)
    columns = (found.sent_s.tolist(), found.prompts.tolist(), found.outputs.tolist())
    return trace_load(list(zip(*columns, strict=True)), seed=seed)


def _checked(requests: int) -> int:
    if not 1 <= requests <= _MOST_REQUESTS:
        raise ConfigError(f"requests={requests}: expected 1 to {_MOST_REQUESTS}")
    return requests


def _asks(lengths: Lengths, count: int) -> tuple[Ask, ...]:
    import numpy as np

    rng = np.random.default_rng(lengths.seed)
    drawn = []
    for mean in (lengths.input_len, lengths.output_len):
        spread = np.rint(mean * (1 + lengths.spread * rng.uniform(-1, 1, count)))
        drawn.append(np.maximum(spread, 1).astype(int).tolist())
    pairs = zip(*drawn, strict=True)
    return tuple(Ask(input_len=prompt, output_len=answer) for prompt, answer in pairs)


PORT = "{port}"
"""In the engine's words: the port that is chosen when it is started."""
MARK = '{"meshwright_serving": '
"""Before the content of a line that is meant for programs."""
LineKind = Literal["starting", "ready", "point", "failed", "end"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeJob:
    """One engine and its loads."""

    command: tuple[str, ...]
    """The engine's, with `{port}` where it is told its port."""
    loads: tuple[Load, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    """None: one that is free."""
    health: str = "/health"
    """What answers with 200 once requests are taken."""
    model: str | None = None
    """The name that requests carry; None: the first that the engine lists."""
    vocab: int = 32000
    ready_s: float = 900.0
    """How long the engine may take until it is ready."""
    patience_s: float = 600.0
    """How long a request may say nothing."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Check what would fail late."""
        if not self.command or not self.loads:
            raise ConfigError("a serving job needs a command and a load")
        if self.port is not None and not 1 <= self.port <= _LAST_PORT:
            raise ConfigError(f"port={self.port}: expected 1 to {_LAST_PORT}")
        for name in ("ready_s", "patience_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"{name}={getattr(self, name):g}: expected a positive number of seconds"
                )

    def to_json(self) -> str:
        """Return the text of `serve.json`."""
        content = asdict(self)
        return json.dumps({**content, "environment": dict(self.environment)}, indent=1) + "\n"


_LAST_PORT = 65535


def read_serve_job(text: str) -> ServeJob:
    """Read `serve.json` back."""
    content = json.loads(text)
    known = {field.name: content[field.name] for field in fields(ServeJob) if field.name in content}
    loads, limits = tuple(map(load_of, content["loads"])), Limits(**content["limits"])
    read = {"command": tuple(content["command"]), "loads": loads, "limits": limits}
    return ServeJob(**{**known, **read})


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the job's output that is meant for programs."""

    kind: LineKind
    content: Mapping[str, Any]

    def text(self) -> str:
        """Return the line."""
        return f"{MARK}{json.dumps({'kind': self.kind, **self.content})}}}"


def line_of(text: str) -> Line | None:
    """Read a line of the output; None of one that is somebody else's, or cut short."""
    at = text.find(MARK)
    if at < 0:
        return None
    try:
        content = dict(json.loads(text[at:])["meshwright_serving"])
        return Line(kind=content.pop("kind"), content=content)
    except (ValueError, KeyError, TypeError):
        return None
