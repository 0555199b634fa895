"""Traces of requests as services publish and log them, each by what its file says it is.

Formats: Azure's public LLM inference traces (TIMESTAMP,ContextTokens,GeneratedTokens); Mooncake's
         JSON lines (timestamp in ms, input_length, output_length, hash_ids: each names a block of
         the prompt and all before it); BurstGPT's CSV; spans of OpenTelemetry as its collector's
         file exporter writes them (OTLP JSON), with the semantic conventions' token counts, as
         vLLM sends them; our own CSV (sent_s, input_len, output_len).
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.platforms.files import MOST_BYTES, read_input
from meshwright.serving.kernels import Floats
from meshwright.serving.traffic import Counts, Trace
from meshwright.values.errors import ConfigError

__all__ = ["read_traffic"]

_LONGEST = 2**24
_MOST_S, _LAST_S = 3.2e8, 1e11
"""Of a trace, ten years; of a clock, the year 5138."""
_KNOWN = (
    "Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens), Mooncake's JSON lines, BurstGPT's CSV,"
    " OTLP JSON, or a CSV with sent_s,input_len,output_len"
)


def read_traffic(path: Path) -> Trace:
    """Read a trace; ConfigError names a line that is wrong, or what was expected."""
    try:
        text = read_input(path, most=4 * MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeError:
        raise ConfigError(f"{path}: no text in UTF-8; expected {_KNOWN}") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"{path}: empty; expected {_KNOWN}")
    if lines[0][1].lstrip().startswith("{"):
        return _trace(path, _json_columns(path, lines))
    return _trace(path, _csv_columns(path, lines))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    """What a file holds, in its order."""

    sent_s: Floats
    prompts: Counts
    outputs: Counts
    lines: Sequence[int]
    """Of the file, by request."""
    hashes: Sequence[tuple[int, ...]] | None = None
    clock: bool = False
    """Whether seconds are those since 1970."""
    notes: tuple[str, ...] = ()


def _trace(path: Path, found: _Columns) -> Trace:
    """Order the requests by time; those without a token of prompt or answer are left out."""
    if not np.isfinite(found.sent_s).all():
        at = int(np.argmin(np.isfinite(found.sent_s)))
        raise ConfigError(f"{path}: line {found.lines[at]}: expected a time")
    lengths = np.stack([found.prompts, found.outputs])
    wrong = ((lengths < 0) | (lengths > _LONGEST)).any(axis=0)
    if wrong.any():
        line = found.lines[int(np.argmax(wrong))]
        raise ConfigError(f"{path}: line {line}: expected 0 to {_LONGEST} tokens")
    kept = np.flatnonzero((lengths > 0).all(axis=0))
    if not len(kept):
        raise ConfigError(f"{path}: no request with a token of prompt and of answer")
    order = kept[np.argsort(found.sent_s[kept], kind="stable")]
    left = len(found.sent_s) - len(kept)
    word = "request" if left == 1 else "requests"
    notes = (f"{left:,} {word} without a token of prompt or answer left out",) if left else ()
    hashes, block = None, 512
    if found.hashes is not None:
        hashes = tuple(found.hashes[at] for at in order.tolist())
        block = _block_tokens(path, found.prompts[order], hashes)
    first = float(found.sent_s[order[0]])
    if (seconds := float(found.sent_s[order[-1]]) - first) > _MOST_S or abs(first) > _LAST_S:
        raise ConfigError(
            f"{path}: {seconds:.3g} seconds from the first request to the last; expected up to ten"
            " years, in the unit that the format has"
        )
    started = str(np.datetime64(int(first), "s")).replace("T", " ") if found.clock else None
    return Trace(
        name=path.name,
        sent_s=found.sent_s[order] - first,
        prompts=found.prompts[order],
        outputs=found.outputs[order],
        hashes=hashes,
        block_tokens=block,
        started=started,
        notes=(*found.notes, *notes),
    )


_CSV: tuple[tuple[str, str, str], ...] = (
    ("sent_s", "input_len", "output_len"),
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    ("Timestamp", "Request tokens", "Response tokens"),
)
"""Columns of time, prompt and answer: ours, Azure's (times of a clock), BurstGPT's (seconds)."""


def _csv_columns(path: Path, lines: Sequence[tuple[int, str]]) -> _Columns:
    heading = [name.strip() for name in next(csv.reader([lines[0][1]]))]
    named = next((names for names in _CSV if set(names) <= set(heading)), None)
    if named is None:
        raise ConfigError(
            f"{path}: line {lines[0][0]}: no columns that are known; expected {_KNOWN}"
        )
    places = [heading.index(name) for name in named]
    numbers = [number for number, _ in lines[1:]]
    if not numbers:
        raise ConfigError(f"{path}: expected one request at least")
    rows = list(csv.reader(line for _, line in lines[1:]))
    clock = named[0] == "TIMESTAMP"

    def column(at: int, kind: Callable[[Sequence[str]], NDArray[Any]]) -> NDArray[Any]:
        try:
            return kind([row[places[at]] for row in rows])
        except (ValueError, IndexError, OverflowError):
            line = _wrong_line(rows, numbers, places[at], kind)
            what = "a time" if at == 0 else "a whole number of tokens"
            raise ConfigError(f"{path}: line {line}: expected {what} in {named[at]}") from None

    return _Columns(
        sent_s=column(0, _clock_s if clock else _seconds),
        prompts=column(1, _whole),
        outputs=column(2, _whole),
        lines=numbers,
        clock=clock,
    )


def _wrong_line(
    rows: Sequence[Sequence[str]],
    numbers: Sequence[int],
    place: int,
    kind: Callable[[Sequence[str]], NDArray[Any]],
) -> int:
    """The first line that cannot be read."""
    for row, number in zip(rows, numbers, strict=False):
        try:
            kind([row[place]])
        except (ValueError, IndexError, OverflowError):
            return number
    return numbers[-1]


def _seconds(cells: Sequence[str]) -> Floats:
    return np.array([float(cell) for cell in cells])


def _whole(cells: Sequence[str]) -> Counts:
    return np.array([int(cell) for cell in cells], dtype=np.int64)


def _clock_s(cells: Sequence[str]) -> Floats:
    """Seconds since 1970 of `2023-11-16 18:17:03.9799600` and `2024-05-10 00:00:00.009930+00:00`;
    ValueError for another zone."""
    plain = [cell.strip().removesuffix("Z").removesuffix("+00:00") for cell in cells]
    if not all(map(_CLOCK.fullmatch, plain)):
        raise ValueError("no time")
    return np.array(plain, dtype="datetime64[us]").astype(np.int64) / 1e6


_CLOCK = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?")


def _json_columns(path: Path, lines: Sequence[tuple[int, str]]) -> _Columns:
    objects = list(_objects(path, lines))
    if any("resourceSpans" in content for _, content in islice(objects, 1)):
        return _spans(path, objects)
    return _mooncake(path, objects)


def _objects(
    path: Path, lines: Sequence[tuple[int, str]]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Objects, one a line; a file that is one object over several lines is read whole."""
    decode = json.loads
    for number, line in lines:
        try:
            content = decode(line)
        except ValueError:
            if number == lines[0][0] and (whole := _whole_object(lines)) is not None:
                yield number, whole
                return
            raise ConfigError(f"{path}: line {number}: no JSON object") from None
        if not isinstance(content, dict):
            raise ConfigError(f"{path}: line {number}: no JSON object")
        yield number, content


def _whole_object(lines: Sequence[tuple[int, str]]) -> Mapping[str, Any] | None:
    try:
        content = json.loads("\n".join(line for _, line in lines))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _mooncake(path: Path, objects: Sequence[tuple[int, Mapping[str, Any]]]) -> _Columns:
    if "input_length" not in objects[0][1]:
        raise ConfigError(f"{path}: line {objects[0][0]}: no input_length; expected {_KNOWN}")
    rows: list[tuple[float, int, int]] = []
    hashes: list[tuple[int, ...]] = []
    numbers: dict[Any, int] = {}
    for line, content in objects:
        try:
            row = tuple(content[name] for name in ("timestamp", "input_length", "output_length"))
            rows.append((float(row[0]) / 1e3, _count(row[1]), _count(row[2])))
            names = content.get("hash_ids") or ()
            hashes.append(tuple(numbers.setdefault(name, len(numbers)) for name in names))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise ConfigError(
                f"{path}: line {line}: expected timestamp, input_length and output_length as"
                " numbers, and hash_ids as a list"
            ) from None
    table = np.array(rows)
    told = any(hashes)
    return _Columns(
        sent_s=table[:, 0],
        prompts=table[:, 1].astype(np.int64),
        outputs=table[:, 2].astype(np.int64),
        lines=[line for line, _ in objects],
        hashes=hashes if told else None,
    )


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value):
        raise ValueError(value)
    return int(value)


_BLOCKS = (512, 16, 32, 64, 128, 256, 1024)
_LOOKED_AT = 1000


def _block_tokens(path: Path, prompts: Counts, hashes: Sequence[tuple[int, ...]]) -> int:
    """Tokens of a block, of which each prompt has as many as it needs: Mooncake's 512, or another
    size that most prompts agree with."""
    told = [
        (prompt, len(names))
        for prompt, names in islice(zip(prompts.tolist(), hashes, strict=True), _LOOKED_AT)
        if names
    ]
    agree = Counter(
        {size: sum(-(-prompt // size) == count for prompt, count in told) for size in _BLOCKS}
    )
    size, count = agree.most_common(1)[0]
    if told and count <= len(told) / 2:
        prompt, names = told[0]
        raise ConfigError(
            f"{path}: {names} hash_ids for a prompt of {prompt} tokens: expected one for each block"
            " of 512 tokens, or of another power of two from 16 to 1024"
        )
    return size


_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_ANSWER = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_ENGINE_SPAN = "llm_request"
"""What vLLM calls its span of a request; a router's span around it counts the same tokens."""


def _spans(path: Path, objects: Iterable[tuple[int, Mapping[str, Any]]]) -> _Columns:
    rows: list[tuple[str, int, float, int, int]] = []
    for line, content in objects:
        try:
            found = _requests_of(content)
            rows += [(name, line, at, prompt, answer) for name, at, prompt, answer in found]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError(f"{path}: line {line}: no spans as OTLP's JSON has them") from None
    engine = [row for row in rows if row[0] == _ENGINE_SPAN]
    if not (chosen := engine or rows):
        raise ConfigError(f"{path}: no span with {_PROMPT[0]} and {_ANSWER[0]}")
    return _Columns(
        sent_s=np.array([row[2] for row in chosen]),
        prompts=np.array([row[3] for row in chosen], dtype=np.int64),
        outputs=np.array([row[4] for row in chosen], dtype=np.int64),
        lines=[row[1] for row in chosen],
        clock=True,
    )


def _requests_of(content: Mapping[str, Any]) -> Iterator[tuple[str, float, int, int]]:
    """Name, seconds, and tokens of prompt and answer of each span that tells them."""
    for resource in content.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                told = {one["key"]: one["value"] for one in span.get("attributes", ())}
                prompt, answer = _attribute(told, _PROMPT), _attribute(told, _ANSWER)
                if prompt is not None and answer is not None:
                    started = int(span["startTimeUnixNano"]) / 1e9
                    yield str(span.get("name")), started, prompt, answer


def _attribute(told: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """A whole number by the first name that is told, as OTLP writes it: as a text or a number."""
    for name in names:
        if name in told:
            value = told[name].get("intValue", told[name].get("doubleValue"))
            return int(float(value))
    return None
