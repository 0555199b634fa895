"""How far a step is: counts that workers share, a live line, or plain lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Self, TextIO

from meshwright.values.units import DAY_S, GB, HOUR_S, MINUTE_S, TERA, counted, format_count

__all__ = [
    "Counts",
    "Progress",
    "SharedCounts",
    "Totals",
    "count",
    "count_into",
    "format_size",
    "format_span",
]

_FIELDS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """What has been done so far."""

    size_bytes: int = 0
    documents: int = 0
    tokens: int = 0


class SharedCounts:
    """Three counts per worker in shared memory; only it writes them: a killed one blocks nobody."""

    def __init__(self, context: BaseContext, workers: int) -> None:
        self.cells: Any = context.RawArray("q", _FIELDS * workers)
        self.slots: Any = context.SimpleQueue()
        for worker in range(workers):
            self.slots.put(worker)

    def read(self) -> Counts:
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
    """Add to the shard at hand: input bytes read, documents and tokens written."""
    _cells[_at] += size_bytes
    _cells[_at + 1] += documents
    _cells[_at + 2] += tokens


PLAIN_EVERY_S = 30.0
"""Between two lines in a log: an hour makes 120 of them."""
LIVE_EVERY_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Totals:
    """What this process has to do, and what earlier starts did of it."""

    title: str
    files: int
    size_bytes: int
    done_files: int = 0
    done_bytes: int = 0


class Progress:
    """Prints while a block runs; `read` returns files and counts of this start."""

    def __init__(
        self,
        totals: Totals,
        read: Callable[[], tuple[int, Counts]],
        *,
        stream: TextIO | None = None,
    ) -> None:
        self.totals, self._read = totals, read
        self._stream = stream or sys.stderr
        self._live: Any = None
        self._begin_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def line(self) -> str:
        files, counts = self._read()
        return progress_line(self.totals, files, counts, elapsed_s=time.monotonic() - self._begin_s)

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(
                console=Console(file=self._stream),
                get_renderable=self._text,
                refresh_per_second=1 / LIVE_EVERY_S,
            )
            self._live.start()
        else:
            self._thread.start()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._over.set()
        if self._live is not None:
            self._live.stop()
            return
        self._thread.join()
        print(self.line(), file=self._stream, flush=True)

    def _text(self) -> Any:
        from rich.text import Text

        return Text(self.line(), overflow="ellipsis", no_wrap=True)

    def _watch(self) -> None:
        while not self._over.wait(PLAIN_EVERY_S):
            print(self.line(), file=self._stream, flush=True)


def progress_line(totals: Totals, files: int, counts: Counts, *, elapsed_s: float) -> str:
    """Return files, bytes, rates, and the time left by bytes, or by files without sizes."""
    all_files, all_bytes = totals.done_files + files, totals.done_bytes + counts.size_bytes
    if totals.size_bytes:
        all_bytes = min(all_bytes, totals.size_bytes)
    of_bytes = f"/{format_size(totals.size_bytes)}" if totals.size_bytes else ""
    head = f"{totals.title}: {all_files:,}/{counted(totals.files, 'file')}"
    parts = [head, f"{format_size(all_bytes)}{of_bytes}"]
    if elapsed_s > 0:
        parts.append(f"{format_size(counts.size_bytes / elapsed_s)}/s")
        if counts.tokens:
            parts.append(f"{format_count(counts.tokens / elapsed_s)} tokens/s")
    did, left = files, totals.files - all_files
    if totals.size_bytes:
        did, left = counts.size_bytes, totals.size_bytes - all_bytes
    if left > 0 and did > 0 and all_files < totals.files:
        parts.append(f"{format_span(elapsed_s * left / did)} left")
    return ", ".join(parts)


def format_size(size_bytes: float) -> str:
    """Write bytes on a disk in three digits, decimal, as disks are sold: `947 GB`."""
    for unit, size in (("TB", TERA), ("GB", GB), ("MB", 10**6), ("kB", 10**3)):
        if size_bytes >= 0.9995 * size:
            digits = ".3g" if size_bytes < 999.5 * size else ",.0f"
            return f"{size_bytes / size:{digits}} {unit}"
    return f"{size_bytes:.0f} B"


def format_span(seconds: float) -> str:
    """Write a time that is left with two units at most: `2d03h`, `4h07m`, `12m`, `40s`."""
    if seconds >= DAY_S:
        return f"{seconds // DAY_S:.0f}d{seconds % DAY_S // HOUR_S:02.0f}h"
    if seconds >= HOUR_S:
        return f"{seconds // HOUR_S:.0f}h{seconds % HOUR_S // MINUTE_S:02.0f}m"
    return f"{seconds / MINUTE_S:.0f}m" if seconds >= 2 * MINUTE_S else f"{seconds:.0f}s"
