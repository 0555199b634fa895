"""The work of tokenizing in segments of about equal bytes: ranges or groups of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import IO

from meshwright.data.archives import archive_of
from meshwright.data.documents import TextUnit, form_of, is_json_lines
from meshwright.data.listing import InputFile
from meshwright.data.pieces import Form, Piece
from meshwright.data.wikipedia import spans_of
from meshwright.values.errors import ConfigError, load_extra
from meshwright.values.units import MIB

__all__ = ["Segment", "check_forms", "cut", "entries", "entries_of", "segment_bytes_for"]

_MAGIC, _SKIPPABLE = 0xFD2FB528, 0x184D2A50
_NO_HELP_BYTES = 1 << 29
"""A file whose first frame is longer has too few to share: its blocks are walked no further."""


class _NotWhole(Exception):
    """The file is cut off, or holds something else; who reads it will say so."""


def entries_of(path: Path, *, piece_bytes: int) -> list[int]:
    """Return bytes, ascending, at which a file can be entered, none closer than `piece_bytes` to
    another; empty: only at its beginning. Of zstd each is the beginning of a frame, found by the
    sizes that frames and blocks state (RFC 8878), which is exact. Of bzip2 it is the magic of a
    stream, 80 bits. gzip states no sizes and xz is mostly one stream: they are read whole."""
    kind = archive_of(path.name)
    if kind == "bz2":
        spans = spans_of(path, piece_bytes=piece_bytes)
        return [span.begin for span in spans if span is not None][1:]
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
    """Yield where the frames behind the first begin; a skippable one belongs to the one before."""
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


LEAST_BYTES = 4 * MIB
MOST_BYTES = 64 * MIB
_SEGMENTS = 4096
"""As many as give thousands of workers their share; more would only make more files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """What one worker does at once; it writes one scratch file."""

    number: int
    """From 0, in the order of the documents."""
    pieces: tuple[Piece, ...]
    size_bytes: int

    @property
    def name(self) -> str:
        return f"{self.number:08d}"


def segment_bytes_for(files: Sequence[InputFile]) -> int:
    """Return the size of a segment: small enough that all workers end together, large enough that
    there are not too many. The cut depends on neither ranks nor workers, and documents never on the
    cut."""
    return min(MOST_BYTES, max(LEAST_BYTES, sum(file.size_bytes for file in files) // _SEGMENTS))


def check_forms(files: Sequence[InputFile], *, form: Form | None) -> None:
    """Check that every file's form is known; ConfigError for the first whose form is not."""
    for file in files:
        form_of(file.path, form)


def entries(
    files: Sequence[InputFile], *, form: Form | None, text_unit: TextUnit, segment_bytes: int
) -> dict[str, list[int]]:
    """Return where large archives of lines can be entered, by path, where they can."""
    found = {}
    for file in files:
        kind, is_packed = form_of(file.path, form), archive_of(file.path) is not None
        if file.size_bytes > segment_bytes and is_packed and _has_lines(file, kind, text_unit):
            found[file.path] = entries_of(Path(file.path), piece_bytes=segment_bytes)
    return {path: places for path, places in found.items() if places}


def cut(
    files: Sequence[InputFile],
    *,
    form: Form | None,
    text_unit: TextUnit,
    segment_bytes: int,
    archive_entries: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> list[Segment]:
    """Cut the inputs into segments; archives where `archive_entries` has them. Any other compressed
    file, a JSON array and a text that is one document have no entry in the middle: one piece
    each."""
    segments: list[Segment] = []
    group: list[Piece] = []
    group_bytes = 0

    def close(pieces: Sequence[Piece], size: int) -> None:
        if pieces:
            segments.append(Segment(number=len(segments), pieces=tuple(pieces), size_bytes=size))

    for file in files:
        kind = form_of(file.path, form)
        if file.size_bytes <= segment_bytes or not _can_be_cut(
            file, kind, text_unit, archive_entries
        ):
            if group and group_bytes + file.size_bytes > segment_bytes:
                close(group, group_bytes)
                group, group_bytes = [], 0
            group.append(Piece(path=file.path, form=kind, size_bytes=file.size_bytes))
            group_bytes += file.size_bytes
            continue
        close(group, group_bytes)
        group, group_bytes = [], 0
        for piece, size_bytes in _ranges(file, kind, segment_bytes, archive_entries):
            close([piece], size_bytes)
    close(group, group_bytes)
    return segments


def _can_be_cut(
    file: InputFile, form: Form, text_unit: TextUnit, archive_entries: Mapping[str, Sequence[int]]
) -> bool:
    if archive_of(file.path) is not None:
        return file.path in archive_entries
    return form == "parquet" or _has_lines(file, form, text_unit)


def _has_lines(file: InputFile, form: Form, text_unit: TextUnit) -> bool:
    if form == "text":
        return text_unit == "line"
    return form == "json" and is_json_lines(file.path)


def _ranges(
    file: InputFile, form: Form, segment_bytes: int, entries: Mapping[str, Sequence[int]]
) -> Iterator[tuple[Piece, int]]:
    """Yield the parts of a large file and their bytes."""
    if form == "parquet" and file.path not in entries:
        yield from _row_groups(file, segment_bytes)
        return
    count = -(-file.size_bytes // segment_bytes)
    even = [place * file.size_bytes // count for place in range(1, count)]
    whole = Piece(path=file.path, form=form, size_bytes=file.size_bytes)
    for start, end in pairwise((0, *entries.get(file.path, even), file.size_bytes)):
        yield replace(whole, start=start, end=end), end - start


def _row_groups(file: InputFile, segment_bytes: int) -> Iterator[tuple[Piece, int]]:
    pa = load_extra("pyarrow", "data")
    import pyarrow.parquet as pq

    whole = Piece(path=file.path, form="parquet", size_bytes=file.size_bytes)
    try:
        sizes = _group_sizes(pq.read_metadata(file.path))
    except pa.ArrowInvalid:  # a worker will name it, by the policy for such files
        yield whole, file.size_bytes
        return
    except OSError as error:
        raise ConfigError(f"{file.path}: {error.strerror or error}") from None
    start, held = 0, 0
    for end, size in enumerate(sizes, start=1):
        held += size
        if held >= segment_bytes or end == len(sizes):
            yield replace(whole, start=start, end=end), held
            start, held = end, 0


def _group_sizes(metadata: object) -> list[int]:
    count: int = getattr(metadata, "num_row_groups")  # noqa: B009
    groups = (metadata.row_group(place) for place in range(count))  # type: ignore[attr-defined]
    return [
        sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        for group in groups
    ]
