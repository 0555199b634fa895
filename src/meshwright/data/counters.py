"""How far the workers of a process are: counts that they raise and that the process reads, without
locks."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any

__all__ = ["Counts", "SharedCounts", "count", "count_into"]

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
