"""Finished segments joined while workers do the next: on a thread, since hashing, reading and
writing let go of the interpreter's lock."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from meshwright.data.assembly import Assembly, TornScratch
from meshwright.data.atomic import locked
from meshwright.data.steps import Record

__all__ = ["EarlyJoin"]


class EarlyJoin:
    """The assembly of a run of one rank, which alone sees each segment end.

    A segment with rejects, and all behind it, waits for the end of the run: until then a start with
    another policy may do it again.
    """

    def __init__(self, assembly: Assembly, names: Sequence[str], *, lock: Path) -> None:
        """Join segments by their names' order; `lock` is held from `with` to its end."""
        self._assembly, self._names, self._lock = assembly, names, locked(lock)
        self._ready: dict[str, Record] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="join")
        self._turn: Future[None] | None = None
        self._torn: TornScratch | None = None

    def take(self, name: str, record: Record) -> None:
        """Hear that a segment is done; an OSError that joining has met meanwhile comes out here."""
        self._ready[name] = record
        if self._turn is None or self._turn.done():
            if self._turn is not None:
                self._turn.result()
            self._turn = self._thread.submit(self._advance)

    def settle(self) -> Assembly:
        """Wait for the thread and return the assembly; TornScratch, or an OSError, where it met
        one."""
        if self._turn is not None:
            self._turn.result()
        if self._torn is not None:
            raise self._torn
        return self._assembly

    def _advance(self) -> None:
        while self._torn is None and self._assembly.segments < len(self._names):
            name = self._names[self._assembly.segments]
            record = self._ready.get(name)
            if record is None or record.get("rejects"):
                return
            try:
                self._assembly.add(name, record)
            except TornScratch as error:
                # nothing can stand behind it; it is said when all that can be done is done
                self._torn = error

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._assembly.abandoned.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._assembly.close()
        self._lock.__exit__(kind, error, trace)
