"""Documents in Parquet: one a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshwright.data.json_documents import empty_reason, texts_of
from meshwright.data.pieces import Document, Piece, Reject, WholeFile, too_long
from meshwright.errors import ConfigError, MissingExtraError

__all__ = ["num_rows", "parquet_rows", "text_bytes_of"]

_PARQUET_ROWS = 512
_USUAL_KEY = "text"


def num_rows(path: str) -> int:
    """Return the rows of a file, by its end alone; ConfigError where it is no Parquet."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def text_bytes_of(path: str) -> Iterator[tuple[int, int]]:
    """Yield rows and the bytes of their texts, a batch at a time: of the column `text`, else of all
    columns of texts together.

    ConfigError where there is no such column.
    """
    with _opened(path) as file:
        import pyarrow as pa
        import pyarrow.compute as pc

        fields = [
            field.name
            for field in file.schema_arrow
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        ]
        names = [_USUAL_KEY] if _USUAL_KEY in fields else fields
        if not names:
            raise ConfigError(
                f"{path}: has no column of texts; it has {', '.join(file.schema_arrow.names[:8])}"
            )
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=names, use_threads=False):
            yield (
                batch.num_rows,
                sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in batch.columns),
            )


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a file; ConfigError where it is no Parquet, or torn."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("pyarrow", "data") from None
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"{path}: truncated, or no Parquet file: {' '.join(str(error).split())[:120]}"
        ) from None


def parquet_rows(piece: Piece, keys: Sequence[str], max_bytes: int) -> Iterator[Document | Reject]:
    """Yield the rows of some row groups."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("pyarrow", "data") from None
    try:
        with pq.ParquetFile(piece.path) as file:
            absent = [key for key in keys if key not in file.schema_arrow.names]
            if absent:
                raise WholeFile(
                    f"missing key {absent[0]!r}; the file has"
                    f" {', '.join(map(repr, file.schema_arrow.names[:8]))}"
                )
            groups = range(piece.start, file.num_row_groups if piece.end is None else piece.end)
            row = 0
            for batch in file.iter_batches(
                batch_size=_PARQUET_ROWS,
                row_groups=list(groups),
                columns=list(keys),
                use_threads=False,
            ):
                for values in zip(*(batch.column(key).to_pylist() for key in keys), strict=True):
                    row += 1
                    yield _row(row, values, keys, max_bytes)
    except pa.ArrowInvalid as error:
        raise WholeFile(
            f"truncated archive or no Parquet file: {' '.join(str(error).split())[:120]}"
        ) from None


def _row(
    number: int, values: tuple[Any, ...], keys: Sequence[str], max_bytes: int
) -> Document | Reject:
    texts = texts_of(dict(zip(keys, values, strict=True)), keys)
    if isinstance(texts, str):
        return Reject(
            line=number, reason=texts, raw=repr(values).encode("utf-8", "backslashreplace")
        )
    size = sum(len("".join(text)) for text in texts)
    if size > max_bytes:
        return Reject(line=number, reason=too_long(max_bytes))
    if not all(texts):
        return Reject(line=number, reason=empty_reason(keys, texts))
    return Document(line=number, texts=texts, size_bytes=size)
