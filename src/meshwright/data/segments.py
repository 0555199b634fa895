"""The work of tokenizing, cut into segments of about equal bytes: ranges of large files, groups of
small ones, in the order of the list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from meshwright.data.archives import archive_of
from meshwright.data.documents import TextUnit, form_of, is_json_lines
from meshwright.data.frames import entries_of
from meshwright.data.listing import InputFile
from meshwright.data.pieces import Form, Piece
from meshwright.values.errors import ConfigError, MissingExtraError
from meshwright.values.units import MIB

__all__ = ["Segment", "check_forms", "cut", "entries", "segment_bytes_for"]

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
        """In the journal."""
        return f"{self.number:08d}"


def segment_bytes_for(files: Sequence[InputFile]) -> int:
    """Return the size of a segment: small enough that all workers end together, large enough that
    there are not too many.

    The cut does not depend on ranks and workers, and documents never depend on the cut.
    """
    return min(MOST_BYTES, max(LEAST_BYTES, sum(file.size_bytes for file in files) // _SEGMENTS))


def check_forms(files: Sequence[InputFile], *, form: Form | None) -> None:
    """Check that what each file holds is known; ConfigError for the first that neither its name nor
    the user says it of."""
    for file in files:
        form_of(file.name, form)


def entries(
    files: Sequence[InputFile], *, form: Form | None, text_unit: TextUnit, segment_bytes: int
) -> dict[str, list[int]]:
    """Return where large archives of lines can be entered, by path; those that can't are not in
    it."""
    found = {}
    for file in files:
        kind = form_of(file.name, form)
        if (
            file.size_bytes > segment_bytes
            and archive_of(file.path) is not None
            and _has_lines(file, kind, text_unit)
        ):
            places = entries_of(Path(file.path), piece_bytes=segment_bytes)
            if places:
                found[file.path] = places
    return found


def cut(
    files: Sequence[InputFile],
    *,
    form: Form | None,
    text_unit: TextUnit,
    segment_bytes: int,
    archive_entries: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> list[Segment]:
    """Cut the inputs into segments; archives where `archive_entries` has them.

    Any other compressed file, a JSON array and a text that is one document can't be entered in the
    middle and are one piece each.
    """
    segments: list[Segment] = []
    group: list[Piece] = []
    group_bytes = 0

    def close(pieces: Sequence[Piece], size_bytes: int) -> None:
        if pieces:
            segments.append(
                Segment(number=len(segments), pieces=tuple(pieces), size_bytes=size_bytes)
            )

    for file in files:
        kind = form_of(file.name, form)
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
        places = archive_entries.get(file.path)
        for piece, size_bytes in (
            _ranges(file, kind, segment_bytes)
            if places is None
            else _archive_ranges(file, kind, places)
        ):
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


def _archive_ranges(
    file: InputFile, form: Form, places: Sequence[int]
) -> Iterator[tuple[Piece, int]]:
    for start, end in pairwise((0, *places, file.size_bytes)):
        yield (
            Piece(path=file.path, form=form, size_bytes=file.size_bytes, start=start, end=end),
            end - start,
        )


def _ranges(file: InputFile, form: Form, segment_bytes: int) -> Iterator[tuple[Piece, int]]:
    """Yield the parts of a large file and their bytes."""
    if form == "parquet":
        yield from _row_groups(file, segment_bytes)
        return
    count = -(-file.size_bytes // segment_bytes)
    for place in range(count):
        start, end = place * file.size_bytes // count, (place + 1) * file.size_bytes // count
        yield (
            Piece(path=file.path, form=form, size_bytes=file.size_bytes, start=start, end=end),
            end - start,
        )


def _row_groups(file: InputFile, segment_bytes: int) -> Iterator[tuple[Piece, int]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("pyarrow", "data") from None
    try:
        sizes = _group_sizes(pq.read_metadata(file.path))
    except pa.ArrowInvalid:  # a worker will name it, by the policy for such files
        yield Piece(path=file.path, form="parquet", size_bytes=file.size_bytes), file.size_bytes
        return
    except OSError as error:
        raise ConfigError(f"{file.path}: {error.strerror or error}") from None
    start, held = 0, 0
    for place, size in enumerate(sizes):
        held += size
        if held >= segment_bytes or place == len(sizes) - 1:
            yield (
                Piece(
                    path=file.path,
                    form="parquet",
                    size_bytes=file.size_bytes,
                    start=start,
                    end=place + 1,
                ),
                held,
            )
            start, held = place + 1, 0


def _group_sizes(metadata: object) -> list[int]:
    count: int = getattr(metadata, "num_row_groups")  # noqa: B009
    groups = (metadata.row_group(place) for place in range(count))  # type: ignore[attr-defined]
    return [
        sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        for group in groups
    ]
