"""Where a compressed file can be entered: at the frames of zstd and the streams of bzip2, found
without decompressing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from meshwright.data.archives import archive_of
from meshwright.data.wikipedia import spans_of

__all__ = ["entries_of"]

_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A50
_NO_HELP_BYTES = 1 << 29
"""A file whose first frame is longer is one frame, or has too few to share: its blocks are not
walked any further."""


class _NotWhole(Exception):
    """The file is cut off, or holds something else; who reads it will say so."""


def entries_of(path: Path, *, piece_bytes: int) -> list[int]:
    """Return bytes, ascending, at which a file can be entered, none closer than `piece_bytes` to
    another; empty: only at its beginning.

    Of zstd each is the beginning of a frame, found by the sizes that frames and blocks state (RFC
    8878), which is exact. Of bzip2 it is the magic of a stream, 80 bits. gzip states no sizes and
    xz is mostly one stream: they are read from the beginning.
    """
    kind = archive_of(path.name)
    if kind == "bz2":
        return [span.begin for span in spans_of(path, piece_bytes=piece_bytes) if span is not None][
            1:
        ]
    if kind != "zst":
        return []
    found: list[int] = []
    try:
        with path.open("rb") as handle:
            for begin in _frames(handle, path.stat().st_size):
                if begin - (found[-1] if found else 0) >= piece_bytes:
                    found.append(begin)
    except _NotWhole:
        return []
    return found


def _frames(handle: IO[bytes], size_bytes: int) -> Iterator[int]:
    """Yield where the frames behind the first begin; frames that are to be skipped belong to the
    one before."""
    at = 0
    is_first = True
    while at < size_bytes:
        handle.seek(at)
        magic = _number(handle, 4)
        if magic & ~0xF == _SKIPPABLE:
            at += 8 + _number(handle, 4)
        elif magic == _MAGIC:
            if not is_first:
                yield at
            at = _frame_end(handle, limit=_NO_HELP_BYTES if is_first else size_bytes)
            is_first = False
        else:
            raise _NotWhole
    if at > size_bytes:
        raise _NotWhole


def _frame_end(handle: IO[bytes], *, limit: int) -> int:
    """Return where the frame ends whose magic was just read."""
    begin = handle.tell()
    flags = _number(handle, 1)
    is_single = bool(flags & 0x20)
    content_size = (int(is_single), 2, 4, 8)[flags >> 6]
    at = begin + 1 + (not is_single) + (0, 1, 2, 4)[flags & 3] + content_size
    is_last = False
    while not is_last:
        handle.seek(at)
        block = _number(handle, 3)
        is_last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == 3 or at - begin > limit:
            raise _NotWhole
        at += 3 + (1 if kind == 1 else size)  # a block of one byte repeated states how often
    return at + (4 if flags & 4 else 0)


def _number(handle: IO[bytes], size: int) -> int:
    raw = handle.read(size)
    if len(raw) < size:
        raise _NotWhole
    return int.from_bytes(raw, "little")
