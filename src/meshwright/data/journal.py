"""What a step has finished, shard by shard: lines that are only ever appended, each on the disk
before the next shard begins."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from meshwright.data.atomic import sync_folder
from meshwright.data.ranks import Place
from meshwright.errors import ConfigError

__all__ = ["Journal", "read_journals"]


class Journal:
    """The file of one process. Every start opens a new one, so that a file has one writer for ever,
    also on NFS."""

    def __init__(self, folder: Path, place: Place) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._handle = _open_new(folder, f"rank{place.rank}of{place.world_size}")
        sync_folder(folder)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record; it is on the disk when this returns."""
        self._handle.write(
            json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(
                "utf-8", "surrogateescape"
            )
            + b"\n"
        )
        self._handle.flush()
        os.fsync(self._handle.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handle.close()
        if not self.path.stat().st_size:
            self.path.unlink()


def _open_new(folder: Path, stem: str) -> tuple[Path, IO[bytes]]:
    number = len(list(folder.glob(f"{stem}-*.jsonl")))
    while True:
        path = folder / f"{stem}-{number}.jsonl"
        try:
            return path, path.open("xb")
        except FileExistsError:
            number += 1


def read_journals(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of all processes, each file's in its order; a last line that a kill tore is
    left out.

    ConfigError where any other line is no record, since that is damage and not a kill.
    """
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.endswith(b"\n"):
                    break
                yield _record(line, path, number)


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape"))
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise ConfigError(
            f"{path}:{number}: no record of a step; the file is damaged: remove it, and its shards"
            " are done again"
        )
    return record
