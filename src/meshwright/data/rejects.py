"""What was no document, with the lines of the whole file: where a range of it was read, the lines
before are counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.data.archives import Span, archive_of, open_plain

__all__ = ["LineCounter", "Rejected", "located"]


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
        """Return the lines before a place at which an archive is entered, with the one that is open
        there or begins there."""
        if path != self._path or start < self._at:
            self._path, self._at, self._lines = path, 0, 1
        if start > self._at:
            with open_plain(path, span=Span(begin=self._at, end=start), counted=False) as plain:
                while block := plain.read(1 << 22):
                    self._lines += block.count(b"\n")
            self._at = start
        return self._lines


def _rows_before(path: str, start: int) -> int:
    """Return the rows of a Parquet file before a row group."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    return sum(metadata.row_group(place).num_rows for place in range(start))


def located(row: Mapping[str, Any], counter: LineCounter) -> Rejected:
    """Return a reject of a segment with its line in the file."""
    line = row["line"]
    if line is not None and row["start"]:
        line += (
            _rows_before(row["file"], row["start"])
            if row["form"] == "parquet"
            else counter.before(row["file"], row["start"])
        )
    return Rejected(file=row["file"], line=line, reason=row["reason"])
