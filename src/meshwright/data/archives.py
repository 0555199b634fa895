"""Compressed files: read as streams of plain bytes, checked for cut-off ends, and extracted."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from meshwright.data.atomic import writing
from meshwright.data.listing import InputFile, settle
from meshwright.data.steps import (
    Record,
    ShardError,
    StepResult,
    is_written,
    require_read_back,
    run_to_manifest,
    state_folder,
)
from meshwright.data.workers import Place, count
from meshwright.values.errors import ConfigError, load_extra

__all__ = ["ARCHIVES", "Span", "archive_of", "check_archive", "extract", "open_plain", "plain_name"]

BLOCK_BYTES = 1 << 20


def _zstd(source: IO[bytes]) -> IO[bytes]:
    """Python 3.14's own, before that its backport: docs/decisions tells why not zstandard."""
    newer = sys.version_info >= (3, 14)
    library = load_extra("compression.zstd" if newer else "backports.zstd", "data")
    opened: IO[bytes] = library.ZstdFile(source)
    return opened


ARCHIVES: Mapping[str, Callable[[IO[bytes]], Any]] = MappingProxyType(
    {
        "zst": _zstd,
        "gz": lambda source: gzip.GzipFile(fileobj=source),
        "bz2": bz2.BZ2File,
        "xz": lzma.LZMAFile,
    }
)
"""Readers by the name's last part; each reads all members, and EOFError means a cut-off one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A run of bytes of a file, before they are decompressed."""

    begin: int
    end: int


class _Counted(io.FileIO):
    """A file, or a span of one, that tells the progress how far it was read."""

    def __init__(self, path: str | Path, span: Span | None, *, counted: bool) -> None:
        super().__init__(path)
        self._left, self._counted = None if span is None else span.end - span.begin, counted
        if span is not None:
            self.seek(span.begin)

    def readinto(self, buffer: Any) -> int | None:
        view = memoryview(buffer).cast("B")
        size = super().readinto(view if self._left is None else view[: self._left]) or 0
        if self._left is not None:
            self._left -= size
        if self._counted:
            count(size_bytes=size)
        return size


def archive_of(name: str) -> str | None:
    """Return the compression that a name ends in, None where it is plain."""
    ending = name.rpartition(".")[2].lower()
    return ending if ending in ARCHIVES else None


def plain_name(name: str) -> str:
    """Return a name without the ending of its compression."""
    return name if archive_of(name) is None else name.rpartition(".")[0]


@contextmanager
def open_plain(
    path: str | Path, *, name: str | None = None, span: Span | None = None, counted: bool = True
) -> Iterator[IO[bytes]]:
    """Open a file, compressed or not by the ending of its name, for its plain bytes; what is read
    of it counts as progress. `name` is given where the file has another one for the time being,
    `span` where only whole members of it are wanted. ShardError of kind `archive` where it is cut
    off, damaged or empty, at the read that finds out."""
    kind = archive_of(name or Path(path).name)
    try:
        with io.BufferedReader(_Counted(path, span, counted=counted), BLOCK_BYTES) as source:
            if kind is None:
                yield source
                return
            if not source.peek(1):
                raise ShardError(f"{path}: is empty, which no .{kind} file can be", "archive")
            with ARCHIVES[kind](source) as plain:
                yield plain
    except EOFError:
        reason = f"is cut off before the end of its .{kind} data"
        raise ShardError(f"{path}: {reason}", "archive") from None
    except Exception as error:
        # gzip says OSError without a number; zstd's own error is told by its name, as two
        # libraries have it
        torn = isinstance(error, OSError) and kind is not None and error.errno is None
        known = isinstance(error, (zlib.error, lzma.LZMAError))
        if not (torn or known or type(error).__name__ == "ZstdError"):
            raise
        raise ShardError(f"{path}: is no whole .{kind} file ({error})", "archive") from None


def check_archive(path: Path, *, name: str | None = None) -> str | None:
    """Read a compressed file whole and return its kind, None if plain; ShardError if torn."""
    kind = archive_of(name or path.name)
    if kind is not None:
        with open_plain(path, name=name, counted=False) as plain:
            while plain.read(BLOCK_BYTES):
                pass
    return kind


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unpack:
    name: str
    size_bytes: int
    path: str
    output: Path
    consume: bool
    where: Where | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Documents that stay: those whose field is one of some values."""

    path: tuple[str, ...]
    """Keys to the field, from the outermost."""
    values: frozenset[str]

    @staticmethod
    def of(text: str) -> Where:
        """Read `KEY.SUB=VALUE,VALUE`; ConfigError for anything else."""
        key, equals, values = text.partition("=")
        if not key or not equals or not values:
            raise ConfigError(
                f"--where {text}: expected KEY=VALUE,VALUE such as meta.source=C4,arXiv"
            )
        return Where(path=tuple(key.split(".")), values=frozenset(values.split(",")))

    def keeps(self, line: bytes, *, of: str) -> bool:
        """Whether a document stays; ShardError where a line is no object."""
        try:
            value = json.loads(line)
        except ValueError:
            reason = "a line is no JSON, so --where can't read it"
            raise ShardError(f"{of}: {reason}", "failed") from None
        for key in self.path:
            value = value.get(key) if isinstance(value, dict) else None
        return value in self.values if isinstance(value, str) else False


def extract(
    inputs: Sequence[str],
    *,
    output: Path,
    workers: int = 1,
    consume: bool = False,
    where: str | None = None,
    place: Place | None = None,
    progress: bool = True,
) -> StepResult:
    """Extract `.zst`, `.gz`, `.bz2` and `.xz` files under their own names into a folder. `inputs`
    are files, folders, patterns and `@FILE` lists. With `consume` an archive is removed once its
    plain file was read back and has the hash of what came out of the archive. `where`, such as
    `meta.source=C4,arXiv`, keeps the documents of one per line whose field has one of the values.
    ConfigError for what is no archive, or for two of one plain name."""
    settings = {"step": "extract", **({} if where is None else {"where": where})}
    kept = None if where is None else Where.of(where)
    endings = [f".{kind}" for kind in ARCHIVES]
    listed = state_folder(output, "extract") / "list.jsonl"
    files = settle(listed, inputs, settings=settings, suffixes=endings, check=_check_names)
    tasks = [
        _Unpack(
            name=plain_name(f.name),
            size_bytes=f.size_bytes,
            path=f.path,
            output=output / plain_name(f.name),
            consume=consume,
            where=kept,
        )
        for f in files
    ]
    return run_to_manifest(
        "extract",
        tasks,
        _unpack,
        output=output,
        settings=settings,
        place=place,
        workers=workers,
        still_there=_still_there,
        after=_remove if consume else None,
        progress=progress,
    )


def _check_names(files: Sequence[InputFile]) -> None:
    plain: dict[str, str] = {}
    for file in files:
        name = plain_name(file.name)
        if name == file.name:
            endings = ", ".join(f".{kind}" for kind in ARCHIVES)
            raise ConfigError(f"{file.path}: expected a name that ends in {endings}")
        if name in plain:
            raise ConfigError(
                f"{plain[name]} and {file.path} would both be written as {name}; extract them into"
                " two folders"
            )
        plain[name] = file.path


def _unpack(task: _Unpack) -> Record:
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with open_plain(task.path) as plain, writing(task.output) as handle:
            for block in _blocks(plain, task):
                digest.update(block)
                size_bytes += handle.write(block)
    except FileNotFoundError:
        raise ShardError(f"{task.path}: does not exist", "missing") from None
    if task.consume:
        require_read_back(task.output, digest.hexdigest(), kept="the archive is kept")
    return {
        "size_bytes": size_bytes,
        "sha256": digest.hexdigest(),
        "archive": archive_of(task.path),
        "verified": task.consume,
    }


def _blocks(plain: IO[bytes], task: _Unpack) -> Iterator[bytes]:
    """The text of an archive in order; where documents are chosen, line by line."""
    rest = b""
    while block := plain.read(BLOCK_BYTES):
        if task.where is None:
            yield block
            continue
        *lines, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in lines if task.where.keeps(line, of=task.path))
    if task.where is not None and rest and task.where.keeps(rest, of=task.path):
        yield rest


def _still_there(task: _Unpack, record: Mapping[str, Any]) -> bool:
    """Whether the plain file is there, and was read back where its archive is to be removed."""
    if task.consume and not record["verified"] and Path(task.path).exists():
        return False
    return is_written(task, record)


def _remove(task: _Unpack, record: Record) -> None:
    Path(task.path).unlink(missing_ok=True)
