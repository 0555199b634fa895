"""Parts of files that are read at once, what is found in them, and their bytes and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from meshwright.data.archives import Span, archive_of, open_plain
from meshwright.data.workers import count

__all__ = [
    "Document",
    "Form",
    "LineCounter",
    "Piece",
    "Reject",
    "Rejected",
    "WholeFile",
    "blocks_of",
    "lines_of",
    "located",
    "too_long",
]

Form = Literal["json", "text", "parquet"]
BLOCK_BYTES = 1 << 22
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A part of a file that is read at once."""

    path: str
    form: Form
    size_bytes: int
    """Of the whole file, as it was listed."""
    start: int = 0
    end: int | None = None
    """Lines that begin in these bytes, or Parquet's row groups from start to before end; None: to
    the end of the file. Of an archive, bytes at which it can be entered; the line that is open or
    begins at such a place is of the piece before it."""


class Document(NamedTuple):
    """One document; a tuple, since there are many."""

    line: int
    """From 1 at the first line or row of the piece."""
    texts: tuple[str | list[str], ...]
    """By key; a list holds sentences that are split already."""
    size_bytes: int

    @property
    def first_text(self) -> str:
        """That of the first key, sentences joined."""
        first = self.texts[0]
        return first if isinstance(first, str) else " ".join(first)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reject:
    """What is no document."""

    line: int | None
    """None: the whole file."""
    reason: str
    raw: bytes = b""


class WholeFile(Exception):
    """A file that can't be used at all; the message says why."""


def lines_of(piece: Piece, max_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield (line number, line without its newline); None for a line that is too long."""
    number, held, size = 0, list[bytes](), 0
    for block in blocks_of(piece):
        lines = block.split(b"\n")
        if size <= max_bytes:
            held.append(lines[0])
        size += len(lines[0])
        if size > max_bytes:
            held = []
        if len(lines) == 1:
            continue
        number += 1
        yield number, b"".join(held) if size <= max_bytes else None
        for line in lines[1:-1]:
            number += 1
            yield number, line if len(line) <= max_bytes else None
        held, size = [lines[-1]], len(lines[-1])
    if size:
        yield number + 1, b"".join(held) if size <= max_bytes else None


def blocks_of(piece: Piece) -> Iterator[bytes]:
    """Yield the bytes of the lines that begin in a piece."""
    if archive_of(piece.path) is not None and (piece.start or piece.end is not None):
        yield from _blocks_of_archive(piece)
        return
    if piece.end is None and not piece.start:
        if archive_of(piece.path) is None and piece.size_bytes <= BLOCK_BYTES:
            yield from _small(piece)
            return
        with open_plain(piece.path) as plain:
            block = plain.read(BLOCK_BYTES).removeprefix(BYTE_ORDER_MARK)
            while block:
                yield block
                block = plain.read(BLOCK_BYTES)
        return
    with Path(piece.path).open("rb") as handle:
        end = piece.size_bytes if piece.end is None else piece.end
        handle.seek(max(0, piece.start - 1))
        block = b"\n"
        if piece.start:
            _skip_line(handle)
        while (left := end - handle.tell()) > 0 and (block := handle.read(min(BLOCK_BYTES, left))):
            count(size_bytes=len(block))
            yield block if handle.tell() > len(block) else block.removeprefix(BYTE_ORDER_MARK)
        if handle.tell() == end and not block.endswith(b"\n"):
            yield from _line_end(handle)


def _small(piece: Piece) -> Iterator[bytes]:
    """Yield a plain file in one block, by as few calls as that takes: there may be millions."""
    with open(piece.path, "rb", buffering=0) as handle:
        whole = handle.read()
    count(size_bytes=len(whole))
    if whole := whole.removeprefix(BYTE_ORDER_MARK):
        yield whole


def _blocks_of_archive(piece: Piece) -> Iterator[bytes]:
    """Yield bytes from behind the first line end in an archive's range to the one after it."""
    end = piece.size_bytes if piece.end is None else piece.end
    has_begun = not piece.start
    with open_plain(piece.path, span=Span(begin=piece.start, end=end)) as plain:
        block = plain.read(BLOCK_BYTES)
        if has_begun:
            block = block.removeprefix(BYTE_ORDER_MARK)
        while block:
            if not has_begun:
                _, newline, block = block.partition(b"\n")
                has_begun = bool(newline)
            if has_begun:
                yield block
            block = plain.read(BLOCK_BYTES)
    if has_begun and end < piece.size_bytes:
        rest = Span(begin=end, end=piece.size_bytes)
        with open_plain(piece.path, span=rest, counted=False) as plain:
            yield from _line_end(plain)


def _skip_line(handle: Any) -> None:
    while (part := handle.readline(BLOCK_BYTES)) and not part.endswith(b"\n"):
        pass


def _line_end(handle: Any) -> Iterator[bytes]:
    while part := handle.readline(BLOCK_BYTES):
        yield part
        if part.endswith(b"\n"):
            return


def too_long(max_bytes: int) -> str:
    """Say that a document is longer than one may be."""
    if max_bytes < 1 << 20:
        return f"longer than {max_bytes} bytes"
    return f"longer than {max_bytes >> 20} MiB (--max-document-mib)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """One reject."""

    file: str
    line: int | None
    """From 1; a row of a Parquet file; None: the whole file."""
    reason: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where}: {self.reason}"


class LineCounter:
    """Lines of a file before a byte; asked in ascending order, it reads the file once."""

    def __init__(self) -> None:
        self._path, self._at, self._lines = "", 0, 0

    def before(self, path: str, start: int) -> int:
        """Return the lines that begin before a byte."""
        if archive_of(path) is not None:
            return self._in_archive(path, start)
        if path != self._path or start < self._at:
            self._path, self._at, self._lines = path, 0, 0
        with Path(path).open("rb") as handle:
            handle.seek(self._at)
            while (left := start - self._at) > 0 and (block := handle.read(min(left, 1 << 22))):
                self._lines += block.count(b"\n")
                self._at += len(block)
            if not start:
                return 0
            handle.seek(start - 1)
            return self._lines + (handle.read(1) != b"\n")

    def _in_archive(self, path: str, start: int) -> int:
        """Return the lines before an entry of an archive, with the one that is open there."""
        if path != self._path or start < self._at:
            self._path, self._at, self._lines = path, 0, 1
        if start > self._at:
            with open_plain(path, span=Span(begin=self._at, end=start), counted=False) as plain:
                while block := plain.read(1 << 22):
                    self._lines += block.count(b"\n")
            self._at = start
        return self._lines


def _rows_before(path: str, start: int) -> int:
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    return sum(metadata.row_group(place).num_rows for place in range(start))


def located(row: Mapping[str, Any], counter: LineCounter) -> Rejected:
    """Return a reject of a segment with its line in the file."""
    line = row["line"]
    if line is not None and row["start"]:
        before = _rows_before if row["form"] == "parquet" else counter.before
        line += before(row["file"], row["start"])
    return Rejected(file=row["file"], line=line, reason=row["reason"])
