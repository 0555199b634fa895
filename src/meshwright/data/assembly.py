"""The scratch files of all segments joined in order into .bin and .idx: a piece at a time, so that
a kill loses little and disk is freed.

Each scratch file is removed when what it holds is on the disk in the output, so both together need
the space once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from meshwright.data.atomic import locked, sync_folder, write_whole, writing
from meshwright.data.indexed import chunks_of, mapped, write_index
from meshwright.data.listing import FileRecord, pair_records
from meshwright.data.pieces import LineCounter, located
from meshwright.data.segment_work import part_path
from meshwright.data.steps import Record
from meshwright.values.errors import MeshwrightError

__all__ = ["Abandoned", "Assembled", "Assembly", "EarlyJoin", "TornScratch", "clear", "read_state"]

COMMIT_BYTES = 1 << 26
"""Ids between two commits: what a kill can make this redo. So soon, since the pages of removed
scratch files are then written anew while they are in use: 170 MB joined take 0.2 s of the kernel's
time, and 0.5 s with one commit at the end."""
_BLOCK_BYTES = 1 << 20
_PARTS = {"tokens": "bin", "lengths": "lengths", "counts": "counts"}


class Abandoned(Exception):
    """An assembly was told to end; what it has committed stays."""


class TornScratch(MeshwrightError):
    """A scratch file is not what its record says: a power cut tore it. It has been removed, so that
    a new start does its segment again."""


@dataclass(slots=True)
class State:
    """How far an assembly is; the files may be longer, what is beyond is cut off."""

    segments: int = 0
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Assembled:
    """The files of one key."""

    prefix: str
    sequences: int
    files: tuple[FileRecord, FileRecord]
    """.bin and .idx."""


class Assembly:
    """The outputs of a run while they grow; one process has them open."""

    def __init__(self, scratch: Path, prefixes: Mapping[str, Path]) -> None:
        """Say where the scratch files and the outputs are, by key; nothing is opened yet."""
        self.scratch, self.prefixes = scratch, dict(prefixes)
        self.abandoned = Event()
        """Set by another thread: what reads or writes here ends at the next block."""
        self._state = read_state(scratch)
        self._names = _names(list(prefixes))
        self._outputs: dict[str, _Growing] = {}
        self._stack = ExitStack()
        self._waiting: list[Path] = []
        self._open_bytes = 0

    @property
    def segments(self) -> int:
        """How many are in the outputs; the next one is the one of this number."""
        return self._state.segments

    def add(self, name: str, record: Record) -> None:
        """Append a segment's scratch file; TornScratch if damaged: open the outputs anew."""
        self._open()
        path = part_path(self.scratch, name)
        _append(path, record, self._outputs, self.abandoned)
        self._waiting.append(path)
        self._open_bytes += record["size_bytes"]
        self._state.segments += 1
        if self._open_bytes >= COMMIT_BYTES:
            self._commit()

    def finish(self, *, dtype: str, rejects: Path | None) -> list[Assembled]:
        """Write the indices and name the outputs; `rejects` is where rejects go, None: nowhere."""
        self._open()
        self._commit()
        hashes = {section: growing.sha256 for section, growing in self._outputs.items()}
        self.close()
        done = []
        for place, (key, prefix) in enumerate(self.prefixes.items()):
            sha256 = hashes[f"{key}.tokens"].hexdigest()
            done.append(_finish(prefix, self.scratch, place, dtype=dtype, sha256=sha256))
        raw = self.scratch / "rejects"
        if rejects is not None and raw.stat().st_size:
            _write_rejects(raw, rejects)
        for prefix in self.prefixes.values():
            sync_folder(prefix.parent)
        return done

    def close(self) -> None:
        """Close the files; what is not committed yet is done again."""
        self._stack.close()

    def _open(self) -> None:
        if self._outputs:
            return
        for place, prefix in enumerate(self.prefixes.values()):
            grown, final = self.scratch / f"{place}.bin", Path(f"{prefix}.bin")
            if self.segments and not grown.exists() and final.exists():
                final.rename(grown)  # a kill came between the last rename and the manifest
        opened: dict[str, _Growing] = {}
        for section, name in self._names.items():
            path, size = self.scratch / name, self._state.sizes.get(section, 0)
            opened[section] = _open(self._stack, path, size, self.abandoned)
        self._outputs = opened

    def _commit(self) -> None:
        for section, growing in self._outputs.items():
            os.fsync(growing.handle.fileno())
            self._state.sizes[section] = growing.handle.tell()
        write_whole(self.scratch / _STATE, json.dumps(asdict(self._state)).encode())
        for part in self._waiting:
            part.unlink(missing_ok=True)
        self._waiting, self._open_bytes = [], 0


def clear(scratch: Path) -> None:
    """Remove what an assembly leaves, when the manifest is written."""
    left = (*scratch.glob("*.lengths"), *scratch.glob("*.counts"))
    for path in (*left, scratch / "rejects", scratch / _STATE):
        path.unlink(missing_ok=True)
    for folder in scratch.glob("[0-9]*[0-9]/"):
        shutil.rmtree(folder, ignore_errors=True)


_STATE = "assembly.json"


def read_state(scratch: Path) -> State:
    """Return how far the assembly in a folder is."""
    try:
        return State(**json.loads((scratch / _STATE).read_bytes()))
    except FileNotFoundError:
        return State()


def _names(keys: Sequence[str]) -> dict[str, str]:
    names = {
        f"{key}.{section}": f"{place}.{ending}"
        for place, key in enumerate(keys)
        for section, ending in _PARTS.items()
    }
    return {**names, "rejects": "rejects"}


@dataclass(slots=True)
class _Growing:
    """A file that is appended to, with the hash of what it holds."""

    handle: IO[bytes]
    """Without a buffer."""
    sha256: Any

    def write(self, block: memoryview) -> None:
        self.sha256.update(block)
        while block:
            block = block[self.handle.write(block) :]


def _open(stack: ExitStack, path: Path, size_bytes: int, abandoned: Event) -> _Growing:
    """Open a growing file where the last commit left it."""
    handle = stack.enter_context(path.open("r+b" if path.exists() else "w+b", buffering=0))
    handle.truncate(size_bytes)
    growing = _Growing(handle, hashlib.sha256())
    for block in _blocks(handle, size_bytes, abandoned):
        growing.sha256.update(block)
    return growing


def _append(path: Path, record: Record, outputs: Mapping[str, _Growing], abandoned: Event) -> None:
    try:
        with path.open("rb", buffering=0) as part:
            for section, (size_bytes, crc) in record["sections"].items():
                found = 0
                for block in _blocks(part, size_bytes, abandoned):
                    found = zlib.crc32(block, found)
                    outputs[section].write(block)
                if found != crc:
                    raise EOFError
    except (FileNotFoundError, EOFError):
        path.unlink(missing_ok=True)
        raise TornScratch(
            f"{path}: what a worker wrote there is lost or torn; start again, and its segment is"
            " done again"
        ) from None


def _blocks(handle: IO[bytes], size_bytes: int, abandoned: Event) -> Iterator[memoryview]:
    """Yield so many bytes in blocks, which are valid until the next."""
    held = memoryview(bytearray(min(size_bytes, _BLOCK_BYTES)))
    while size_bytes > 0:
        if abandoned.is_set():
            raise Abandoned
        read: int = handle.readinto(held[: min(size_bytes, len(held))])  # type: ignore[attr-defined]
        if not read:
            raise EOFError
        size_bytes -= read
        yield held[:read]


def _finish(prefix: Path, scratch: Path, place: int, *, dtype: str, sha256: str) -> Assembled:
    lengths, counts = (mapped(scratch / f"{place}.{name}", "<i4") for name in ("lengths", "counts"))
    bounds = scratch / f"{place}.bounds"
    _write_bounds(bounds, counts)
    ids = np.dtype(dtype)
    with writing(Path(f"{prefix}.idx")) as handle:
        write_index(handle, dtype=ids, lengths=lengths, bounds=mapped(bounds, "<i8"))
    bounds.unlink()
    grown = (scratch / f"{place}.bin").rename(f"{prefix}.bin")
    num_tokens = grown.stat().st_size // ids.itemsize
    records = pair_records(prefix, sha256=sha256, documents=len(counts), tokens=num_tokens)
    return Assembled(prefix=str(prefix), sequences=len(lengths), files=records)


def _write_bounds(path: Path, counts: NDArray[np.int32]) -> None:
    """Write the first sequence of each document, and the end, as running sums."""
    last = 0
    with path.open("wb") as handle:
        handle.write(np.zeros(1, dtype="<i8").tobytes())
        for part in chunks_of(counts):
            ends = last + np.cumsum(part, dtype=np.int64)
            handle.write(ends.astype("<i8", copy=False).tobytes())
            last = int(ends[-1])


def _write_rejects(raw: Path, path: Path) -> None:
    counter = LineCounter()
    with raw.open(encoding="utf-8", errors="surrogateescape") as rows, writing(path) as handle:
        for text in rows:
            row = json.loads(text)
            row["line"] = located(row, counter).line
            del row["start"], row["form"]
            line = json.dumps(row, ensure_ascii=False) + "\n"
            handle.write(line.encode("utf-8", "surrogateescape"))


class EarlyJoin:
    """The assembly of a run of one rank, which alone sees each segment end. A segment with rejects,
    and all behind it, waits for the end of the run: a start with another policy may do it again."""

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
        """Wait for the thread and return the assembly; raise what it met (TornScratch, OSError)."""
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

    def __exit__(self, *raised: Any) -> None:
        self._assembly.abandoned.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._assembly.close()
        self._lock.__exit__(*raised)
