"""Documents in JSON: one object a line, or an array or run of objects over any lines."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from meshwright.data.pieces import (
    BLOCK_BYTES,
    Document,
    Piece,
    Reject,
    WholeFile,
    blocks_of,
    lines_of,
    too_long,
)
from meshwright.values.errors import MissingExtraError

__all__ = ["empty_reason", "json_lines", "json_values", "texts_of"]

_BETWEEN = re.compile(r"[\s,\[\]]*")
"""What stands between the objects of a file."""


def json_lines(piece: Piece, keys: Sequence[str], max_bytes: int) -> Iterator[Document | Reject]:
    """Yield the documents of lines of JSON, and the lines that are none."""
    decode, errors = _json_decoder(keys)
    for number, line in lines_of(piece, max_bytes):
        if line is None:
            yield Reject(line=number, reason=too_long(max_bytes))
            continue
        if not line or line.isspace():
            continue  # a blank line holds nothing
        try:
            texts = decode(line)
        except errors:
            outcome = _slowly(line, keys)
            if isinstance(outcome, str):
                yield Reject(line=number, reason=outcome, raw=line)
                continue
            texts = outcome
        if all(texts):
            yield Document(line=number, texts=texts, size_bytes=len(line) + 1)
        else:
            yield Reject(line=number, reason=empty_reason(keys, texts), raw=line)


def _json_decoder(
    keys: Sequence[str],
) -> tuple[Callable[[bytes], tuple[str | list[str], ...]], tuple[type[Exception], ...]]:
    """Return a function from a line to its texts that reads nothing else of the line, and what it
    raises."""
    try:
        import msgspec
    except ImportError:
        raise MissingExtraError("msgspec", "data") from None
    fields = [(f"key{place}", str | list[str]) for place in range(len(keys))]
    names = {f"key{place}": key for place, key in enumerate(keys)}
    decoder = msgspec.json.Decoder(msgspec.defstruct("Line", fields, rename=names, gc=False))
    errors = (msgspec.DecodeError, UnicodeDecodeError)
    if len(keys) == 1:
        return lambda line: (cast("Any", decoder.decode(line)).key0,), errors
    return lambda line: msgspec.structs.astuple(decoder.decode(line)), errors


def _slowly(line: bytes, keys: Sequence[str]) -> tuple[str | list[str], ...] | str:
    """Read a line that the quick reader refused: the texts (Python writes NaN, which JSON has not),
    or the reason in words."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"bad UTF-8 at byte {error.start + 1} of the line"
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        return f"bad JSON: {error.msg} at column {error.colno}"
    except RecursionError:
        return "bad JSON: nested too deep"
    return texts_of(record, keys)


def texts_of(record: Any, keys: Sequence[str]) -> tuple[str | list[str], ...] | str:
    """Return the texts of a JSON object by key, or in words why there are none."""
    if not isinstance(record, dict):
        return f"bad JSON: {type(record).__name__} where an object is expected"
    texts = []
    for key in keys:
        if key not in record:
            return f"missing key {key!r}"
        value = record[key]
        if not isinstance(value, str) and not (
            isinstance(value, list) and all(isinstance(part, str) for part in value)
        ):
            return f"key {key!r} holds {type(value).__name__}, neither text nor a list of texts"
        try:
            "".join(value).encode("utf-8")
        except UnicodeEncodeError:
            return f"bad UTF-8: key {key!r} holds half a surrogate pair"
        texts.append(value)
    return tuple(texts)


def empty_reason(keys: Sequence[str], texts: Sequence[str | list[str]]) -> str:
    """Say that a text is empty, and under which key."""
    key = next(key for key, text in zip(keys, texts, strict=True) if not text)
    return "empty document" if len(keys) == 1 else f"empty document: key {key!r}"


def json_values(piece: Piece, keys: Sequence[str], max_bytes: int) -> Iterator[Document | Reject]:
    """Read an array of objects, or objects one after the other over any number of lines, a piece at
    a time."""
    decoder, values = codecs.getincrementaldecoder("utf-8-sig")(), json.JSONDecoder()
    blocks, text, at, line, ended = blocks_of(piece), "", 0, 1, False
    while True:
        begin = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        line += text.count("\n", at, begin)
        try:
            record, at = values.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            if ended and begin == len(text):
                return
            if ended:
                raise WholeFile(
                    f"bad JSON: {error.msg} in line {line + text.count(chr(10), begin, error.pos)}"
                ) from None
            if len(text) - begin > max_bytes:
                raise WholeFile(
                    f"the object in line {line} is {too_long(max_bytes)}, or broken"
                ) from None
            more, ended = _more(blocks, decoder, least=max(BLOCK_BYTES, len(text) - begin))
            text, at = text[begin:] + more, 0
            continue
        raw = text[begin:at]
        texts = texts_of(record, keys)
        if isinstance(texts, str):
            yield Reject(line=line, reason=texts, raw=raw.encode("utf-8", "surrogatepass"))
        elif all(texts):
            yield Document(line=line, texts=texts, size_bytes=len(raw))
        else:
            yield Reject(line=line, reason=empty_reason(keys, texts), raw=raw.encode())
        line += raw.count("\n")


def _more(blocks: Iterator[bytes], decoder: Any, *, least: int) -> tuple[str, bool]:
    """Return more text of a file, and whether it is at its end."""
    parts: list[str] = []
    have = 0
    try:
        for block in blocks:
            parts.append(decoder.decode(block))
            have += len(block)
            if have >= least:
                return "".join(parts), False
        parts.append(decoder.decode(b"", True))
    except UnicodeDecodeError:
        raise WholeFile("bad UTF-8") from None
    return "".join(parts), True
