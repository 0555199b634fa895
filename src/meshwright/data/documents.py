"""Documents of a file: JSON lines, JSON values, text, Parquet; each reject has line and reason."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, cast

from meshwright.data.archives import ARCHIVES, archive_of, plain_name
from meshwright.data.pieces import (
    BLOCK_BYTES,
    BYTE_ORDER_MARK,
    Document,
    Form,
    Piece,
    Reject,
    WholeFile,
    blocks_of,
    lines_of,
    too_long,
)
from meshwright.data.steps import ShardError
from meshwright.values.errors import ConfigError, load_extra

__all__ = [
    "SUFFIXES",
    "TextUnit",
    "empty_reason",
    "form_of",
    "is_json_lines",
    "json_lines",
    "json_values",
    "num_rows",
    "parquet_rows",
    "read_documents",
    "text_bytes_of",
    "texts_of",
]

_BETWEEN = re.compile(r"[\s,\[\]]*")


def json_lines(piece: Piece, keys: Sequence[str], max_bytes: int) -> Iterator[Document | Reject]:
    """Yield the documents of lines of JSON, and the lines that are none."""
    decode, errors = _json_decoder(tuple(keys))
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


@cache  # a class is made for the keys, which takes longer than to read a small file
def _json_decoder(
    keys: tuple[str, ...],
) -> tuple[Callable[[bytes], tuple[str | list[str], ...]], tuple[type[Exception], ...]]:
    """Return a function from a line to its texts that reads nothing else, and what it raises."""
    msgspec = load_extra("msgspec", "data")
    fields = [(f"key{place}", str | list[str]) for place in range(len(keys))]
    names = {f"key{place}": key for place, key in enumerate(keys)}
    decoder = msgspec.json.Decoder(msgspec.defstruct("Line", fields, rename=names, gc=False))
    errors = (msgspec.DecodeError, UnicodeDecodeError)
    if len(keys) == 1:
        return lambda line: (cast("Any", decoder.decode(line)).key0,), errors
    return lambda line: msgspec.structs.astuple(decoder.decode(line)), errors


def _slowly(line: bytes, keys: Sequence[str]) -> tuple[str | list[str], ...] | str:
    """Read a line that msgspec refused (Python writes NaN, which JSON lacks), or say the reason."""
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
    """Read an array of objects, or objects over any number of lines, a piece at a time."""
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
                at_line = line + text.count("\n", begin, error.pos)
                raise WholeFile(f"bad JSON: {error.msg} in line {at_line}") from None
            if len(text) - begin > max_bytes:
                reason = f"the object in line {line} is {too_long(max_bytes)}, or broken"
                raise WholeFile(reason) from None
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


_PARQUET_ROWS = 512
_USUAL_KEY = "text"


def num_rows(path: str) -> int:
    """Return the rows of a file, by its end alone; ConfigError where it is no Parquet."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def text_bytes_of(path: str) -> Iterator[tuple[int, int]]:
    """Yield rows and the bytes of their texts, a batch at a time: of the column `text`, else of all
    columns of texts together. ConfigError where there is no such column."""
    with _opened(path) as file:
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = (pa.types.is_string, pa.types.is_large_string)
        schema = file.schema_arrow
        fields = [field.name for field in schema if any(is_text(field.type) for is_text in texts)]
        names = [_USUAL_KEY] if _USUAL_KEY in fields else fields
        if not names:
            raise ConfigError(
                f"{path}: has no column of texts; it has {', '.join(file.schema_arrow.names[:8])}"
            )
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=names, use_threads=False):
            lengths = (pc.sum(pc.binary_length(column)).as_py() for column in batch.columns)
            yield batch.num_rows, sum(length or 0 for length in lengths)


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    pa = load_extra("pyarrow", "data")
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"{path}: truncated, or no Parquet file: {' '.join(str(error).split())[:120]}"
        ) from None


def parquet_rows(piece: Piece, keys: Sequence[str], max_bytes: int) -> Iterator[Document | Reject]:
    """Yield the rows of some row groups."""
    pa = load_extra("pyarrow", "data")
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(piece.path) as file:
            absent = [key for key in keys if key not in file.schema_arrow.names]
            if absent:
                raise WholeFile(
                    f"missing key {absent[0]!r}; the file has"
                    f" {', '.join(map(repr, file.schema_arrow.names[:8]))}"
                )
            groups = range(piece.start, file.num_row_groups if piece.end is None else piece.end)
            words = {"row_groups": list(groups), "columns": list(keys), "use_threads": False}
            row = 0
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, **words):
                for values in zip(*(batch.column(key).to_pylist() for key in keys), strict=True):
                    row += 1
                    yield _row(row, values, keys, max_bytes)
    except pa.ArrowInvalid as error:
        raise WholeFile(
            f"truncated archive or no Parquet file: {' '.join(str(error).split())[:120]}"
        ) from None


def _row(
    number: int, values: tuple[Any, ...], keys: Sequence[str], max_bytes: int
) -> Document | Reject:
    texts = texts_of(dict(zip(keys, values, strict=True)), keys)
    if isinstance(texts, str):
        return Reject(
            line=number, reason=texts, raw=repr(values).encode("utf-8", "backslashreplace")
        )
    size = sum(len("".join(text)) for text in texts)
    if size > max_bytes:
        return Reject(line=number, reason=too_long(max_bytes))
    if not all(texts):
        return Reject(line=number, reason=empty_reason(keys, texts))
    return Document(line=number, texts=texts, size_bytes=size)


TextUnit = Literal["file", "line", "paragraph"]
_ALWAYS_LINES = {".jsonl", ".ndjson"}
_FORMS: dict[str, Form] = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".parquet": "parquet",
}
SUFFIXES = tuple(
    f"{form}{packed}"
    for form in _FORMS
    if form != ".md"
    for packed in ("", *(f".{kind}" for kind in ARCHIVES))
)
_EXTRACTED = tuple(f"wiki_{number:02}" for number in range(100))
"""WikiExtractor's names (`AA/wiki_00`), of 100 files a folder; with `--json` each line is an
object."""
SUFFIXES += tuple(f"/{name}{packed}" for name in _EXTRACTED for packed in ("", ".bz2"))
"""Of the files that are taken from a folder; a whole name begins with a slash."""
_PEEK_BYTES = 1 << 16


def form_of(path: str, wanted: Form | None) -> Form:
    """Return the form of a file by its name; ConfigError where nobody says it."""
    form = wanted or _FORMS.get(os.path.splitext(plain_name(path))[1].lower())
    if form is None and os.path.basename(plain_name(path)) in _EXTRACTED:
        if _head(path).lstrip().startswith(b"<doc"):
            raise ConfigError(
                f"{path}: WikiExtractor's XML; run it with --json, or `meshwright data wiki` on the"
                " dump"
            )
        return "json"
    if form is None:
        raise ConfigError(
            f"{path}: can't tell what it holds by its name; give --format json, text or parquet"
        )
    return form


def is_json_lines(path: str) -> bool:
    """Tell JSON lines from longer values by the first line; Megatron's `.json` holds lines."""
    plain = plain_name(path)
    if os.path.splitext(plain)[1].lower() in _ALWAYS_LINES or os.path.basename(plain) in _EXTRACTED:
        return True
    head = _head(path).removeprefix(BYTE_ORDER_MARK).lstrip()
    line, newline, _ = head.partition(b"\n")
    # the first line of a JSON object that goes on, rather than a broken one
    stripped = line.rstrip()
    goes_on = stripped == b"{" or stripped.endswith((b",", b"[", b"{"))
    return not (line.startswith(b"[") or (line.startswith(b"{") and newline and goes_on))


def _head(path: str) -> bytes:
    """Return the beginning of a file; empty for a broken archive, which its reader reports."""
    kind = archive_of(path)
    try:
        with Path(path).open("rb") as raw:
            plain: IO[bytes] = raw if kind is None else ARCHIVES[kind](raw)
            return plain.read(_PEEK_BYTES)
    except Exception:  # every compression has its own errors
        if kind is None:
            raise
        return b""


def read_documents(
    piece: Piece, *, keys: Sequence[str], text_unit: TextUnit, max_bytes: int
) -> Iterator[Document | Reject]:
    """Yield a piece's documents in order, and what is none. A file that can't be read to its end is
    one Reject without a line behind what was readable: what came before it must not be used."""
    try:
        size_bytes = os.stat(piece.path).st_size
        if size_bytes != piece.size_bytes:
            raise WholeFile(
                f"changed since the list was made: {size_bytes} bytes, {piece.size_bytes} then"
            )
        if not piece.size_bytes:
            raise WholeFile("zero-byte file")
        if piece.form == "parquet":
            yield from parquet_rows(piece, keys, max_bytes)
        elif piece.form == "text":
            yield from _text(piece, text_unit, max_bytes, len(keys))
        elif piece.start or piece.end is not None or is_json_lines(piece.path):
            yield from json_lines(piece, keys, max_bytes)
        else:
            yield from json_values(piece, keys, max_bytes)
    except WholeFile as error:
        yield Reject(line=None, reason=str(error))
    except ShardError as error:
        where = f" (read from byte {piece.start:,} on)" if piece.start else ""
        yield Reject(line=None, reason=error.reason.removeprefix(f"{piece.path}: ") + where)
    except FileNotFoundError:
        yield Reject(line=None, reason="no such file any more")


def _text(piece: Piece, unit: TextUnit, max_bytes: int, keys: int) -> Iterator[Document | Reject]:
    if unit == "file":
        yield _text_document(1, _whole(piece, max_bytes), max_bytes, keys)
    elif unit == "line":
        for number, line in lines_of(piece, max_bytes):
            if line is None or line.strip():
                yield _text_document(number, line, max_bytes, keys)
    else:
        begin, held, size = 0, list[bytes](), 0
        for number, line in chain(lines_of(piece, max_bytes), ((0, b""),)):
            if line is not None and not line.strip():
                if held:
                    raw = b"\n".join(held) if size <= max_bytes else None
                    yield _text_document(begin, raw, max_bytes, keys)
                held, size = [], 0
                continue
            begin = begin if held else number
            size += max_bytes + 1 if line is None else len(line) + 1
            held.append(line if line is not None and size <= max_bytes else b"")


def _whole(piece: Piece, max_bytes: int) -> bytes | None:
    parts, size = [], 0
    for block in blocks_of(piece):
        size += len(block)
        if size > max_bytes:
            return None
        parts.append(block)
    return b"".join(parts)


def _text_document(line: int, raw: bytes | None, max_bytes: int, keys: int) -> Document | Reject:
    if raw is None:
        return Reject(line=line, reason=too_long(max_bytes))
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Reject(
            line=line + raw.count(b"\n", 0, error.start),
            reason=f"bad UTF-8 at byte {error.start + 1} of the document",
            raw=raw,
        )
    if not text:
        return Reject(line=line, reason="empty document")
    return Document(line=line, texts=(text,) * keys, size_bytes=len(raw))
