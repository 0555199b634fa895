"""How long the documents of .bin/.idx pairs are: exact quantiles and a histogram, in little
memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.data.blending import prefixes_of
from meshwright.data.indexed import IndexedFile, chunks_of

__all__ = ["QUANTILES", "Counts", "LengthStats", "SharedCounts", "count", "count_into", "stats"]

_FIELDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What has been done so far."""

    size_bytes: int = 0
    documents: int = 0
    tokens: int = 0


class SharedCounts:
    """Three counts per worker, in memory that all of them see; each writes its own only, so a
    killed worker blocks nobody."""

    def __init__(self, context: BaseContext, workers: int) -> None:
        self.cells: Any = context.RawArray("q", _FIELDS * workers)
        self.slots: Any = context.SimpleQueue()
        for worker in range(workers):
            self.slots.put(worker)

    def read(self) -> Counts:
        """Return the sums over the workers."""
        size_bytes, documents, tokens = (
            sum(self.cells[field::_FIELDS]) for field in range(_FIELDS)
        )
        return Counts(size_bytes=size_bytes, documents=documents, tokens=tokens)


_cells: Any = [0] * _FIELDS
_at = 0


def count_into(cells: Any, slot: int) -> None:
    """Say where the counts of this process go."""
    global _cells, _at
    _cells, _at = cells, slot * _FIELDS


def count(*, size_bytes: int = 0, documents: int = 0, tokens: int = 0) -> None:
    """Say that the shard at hand is further by so much: input bytes read, documents and tokens
    written."""
    _cells[_at] += size_bytes
    _cells[_at + 1] += documents
    _cells[_at + 2] += tokens


QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_COUNTED = 1 << 22
"""Lengths below it are counted one by one; documents beyond are few and kept as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthStats:
    """One pair, or several taken together."""

    prefix: str
    documents: int
    sequences: int
    tokens: int
    size_bytes: int
    """Of both files."""
    quantiles: dict[float, int]
    """Document lengths in tokens by share: the smallest length that at least this share of the
    documents does not exceed."""
    histogram: tuple[tuple[int, int, int, int], ...]
    """From, below, documents, tokens, by powers of two; the first holds empty documents."""

    @property
    def mean(self) -> float:
        """Tokens per document."""
        return self.tokens / self.documents if self.documents else 0.0


def stats(words: Sequence[str]) -> list[LengthStats]:
    """Count the documents of some pairs; with several, the last entry is all of them together.
    ConfigError for a broken pair."""
    files = [IndexedFile(prefix) for prefix in prefixes_of(words)]
    counts = [_count(file) for file in files]
    found = [
        _stats(file.prefix, [file], [count]) for file, count in zip(files, counts, strict=True)
    ]
    return found if len(files) == 1 else [*found, _stats("all", files, counts)]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Documents by length."""

    short: NDArray[np.int64]
    """(_COUNTED,)."""
    long: NDArray[np.int64]
    """Lengths of the others, ascending."""


def _count(file: IndexedFile) -> _Counts:
    short, long = np.zeros(_COUNTED, dtype=np.int64), list[NDArray[np.int64]]()
    for lengths in _document_lengths(file):
        fitting = lengths[lengths < _COUNTED]
        short += np.bincount(fitting, minlength=_COUNTED)
        long.append(lengths[lengths >= _COUNTED])
    return _Counts(short, np.sort(np.concatenate(long)) if long else np.zeros(0, dtype=np.int64))


def _document_lengths(file: IndexedFile) -> Iterator[NDArray[np.int64]]:
    """Yield the tokens of each document: from its first sequence's first byte to the next
    document's."""
    before = 0
    total_bytes = file.num_tokens * file.dtype.itemsize
    for part in chunks_of(file.bounds[1:]):
        inside = np.minimum(part, max(0, file.num_sequences - 1))
        ends = np.where(
            part < file.num_sequences,
            file.pointers[inside] if file.num_sequences else 0,
            total_bytes,
        )
        yield np.diff(ends, prepend=before) // file.dtype.itemsize
        before = int(ends[-1])


def _stats(name: str, files: Sequence[IndexedFile], counts: Sequence[_Counts]) -> LengthStats:
    short = np.sum([count.short for count in counts], axis=0)
    long = np.sort(np.concatenate([count.long for count in counts]))
    documents = int(short.sum()) + len(long)
    return LengthStats(
        prefix=name,
        documents=documents,
        sequences=sum(file.num_sequences for file in files),
        tokens=sum(file.num_tokens for file in files),
        size_bytes=sum(
            file.index_path.stat().st_size + file.tokens_path.stat().st_size for file in files
        ),
        quantiles=(
            {share: _quantile(short, long, share) for share in QUANTILES} if documents else {}
        ),
        histogram=tuple(_histogram(short, long)),
    )


def _quantile(short: NDArray[np.int64], long: NDArray[np.int64], share: float) -> int:
    running = np.cumsum(short)
    rank = max(1, int(np.ceil(share * (int(running[-1]) + len(long)))))
    if rank <= running[-1]:
        return int(np.searchsorted(running, rank))
    return int(long[rank - int(running[-1]) - 1])


def _histogram(
    short: NDArray[np.int64], long: NDArray[np.int64]
) -> Iterator[tuple[int, int, int, int]]:
    start, below = 0, 1
    most = int(long[-1]) if len(long) else int(np.flatnonzero(short)[-1]) if short.any() else -1
    while start <= most:
        if start < _COUNTED:
            part = short[start:below]
            documents, tokens = (
                int(part.sum()),
                int((part * np.arange(start, start + len(part))).sum()),
            )
        else:
            held = long[(long >= start) & (long < below)]
            documents, tokens = len(held), int(held.sum())
        if documents:
            yield start, below, documents, tokens
        start, below = below, 2 * below
