"""Compressed files as streams of plain bytes: several members or frames one after the other, and
cut-off files found."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from meshwright.data.counting import count
from meshwright.data.steps import ShardError
from meshwright.values.errors import MissingExtraError

__all__ = ["ARCHIVES", "Span", "archive_of", "check_archive", "open_plain", "plain_name"]

BLOCK_BYTES = 1 << 20


def _zstd(source: IO[bytes]) -> IO[bytes]:
    """Standard library from Python 3.14 on, before that its backport: docs/decisions tells why not
    zstandard."""
    library: Any
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd as library
        else:
            from backports import zstd as library
    except ImportError:
        raise MissingExtraError("backports.zstd", "data") from None
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
"""Readers by the name's last part; each reads member after member and raises EOFError where the
last one is cut off."""


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
    of it counts as progress.

    `name` is given where the file has another one for the time being, `span` where only whole
    members of it are wanted.

    ShardError of kind `archive` where it is cut off, damaged or empty, at the read that finds out.
    """
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
        raise ShardError(
            f"{path}: is cut off before the end of its .{kind} data", "archive"
        ) from None
    except (zlib.error, lzma.LZMAError) as error:
        raise ShardError(f"{path}: is no whole .{kind} file ({error})", "archive") from None
    except OSError as error:
        if kind is None or error.errno is not None:
            raise
        raise ShardError(f"{path}: is no whole .{kind} file ({error})", "archive") from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise ShardError(f"{path}: is no whole .{kind} file ({error})", "archive") from None


def check_archive(path: Path, *, name: str | None = None) -> str | None:
    """Read a compressed file to its end and return its kind, None where it is plain; ShardError
    where it is not whole."""
    kind = archive_of(name or path.name)
    if kind is not None:
        with open_plain(path, name=name, counted=False) as plain:
            while plain.read(BLOCK_BYTES):
                pass
    return kind
