"""Megatron's .bin/.idx files: token ids one after the other, and an index of the sequences and
documents in them.

The .bin file holds the ids alone. The .idx file, little-endian throughout (Megatron-Core,
core/datasets/indexed_dataset.py):

    offset      size                what
    0           9                   magic `MMIDIDX\\0\\0`
    9           8                   version, u64, 1
    17          1                   type of the ids, u8, see DTYPES
    18          8                   number of sequences S, u64
    26          8                   number of document bounds D, u64: documents + 1
    34          4 S                 length of each sequence in ids, i32
    34 + 4 S    8 S                 first byte of each sequence in the .bin file, i64
    34 + 12 S   8 D                 first sequence of each document, and S at the end, i64

A document without text has no sequence. A document that was split into sentences has one sequence
for each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from meshwright.values.errors import ConfigError

__all__ = [
    "DTYPES",
    "HEADER_BYTES",
    "MAGIC",
    "SMALL_VOCABULARY",
    "IndexedFile",
    "chunks_of",
    "dtype_code",
    "index_bytes",
    "mapped",
    "prefix_path",
    "token_dtype",
    "write_index",
]

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
"""Codes of the type of the ids (Megatron-Core, indexed_dataset.py, DType)."""
SMALL_VOCABULARY = 65_500
"""Vocabularies below it are written as u16, others as i32 (Megatron-Core, DType.optimal_dtype)."""
_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size
_CHUNK = 1 << 20


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the type in which ids of a vocabulary are stored."""
    return np.dtype("<u2") if vocab_size < SMALL_VOCABULARY else np.dtype("<i4")


def dtype_code(dtype: np.dtype[Any]) -> int:
    """Return the code of a type of ids; ConfigError where the format has none."""
    for code, known in DTYPES.items():
        if np.dtype(known) == dtype.newbyteorder("="):
            return code
    raise ConfigError(f"{dtype}: the .idx format has no code for this type of ids")


def prefix_path(prefix: str) -> Path:
    """Return the beginning of the names of a pair that is to be written; ConfigError for a
    folder."""
    path = Path(prefix)
    if not path.name or path.is_dir():
        raise ConfigError(
            f"--output-prefix {prefix!r}: expected the beginning of a file's name, not a folder"
        )
    return path


def index_bytes(sequences: int, bounds: int) -> int:
    """Return the size of an .idx file."""
    return HEADER_BYTES + 12 * sequences + 8 * bounds


class IndexedFile:
    """One pair of files, mapped: documents are runs of sequences, sequences runs of ids. Nothing is
    read before it is asked for."""

    def __init__(self, prefix: str | Path) -> None:
        """Open both files; ConfigError where one is absent, wrong, or shorter than indexed."""
        self.prefix = str(prefix)
        self.index_path, self.tokens_path = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        for file in (self.index_path, self.tokens_path):
            if not file.is_file():
                raise ConfigError(f"data {self.prefix!r}: {file} does not exist")
        self.dtype, sequences, bounds = self._read_header()
        self.lengths: NDArray[np.int32] = mapped(self.index_path, "<i4", sequences, HEADER_BYTES)
        """Ids of each sequence, (sequences,)."""
        self.pointers: NDArray[np.int64] = mapped(
            self.index_path, "<i8", sequences, HEADER_BYTES + 4 * sequences
        )
        """First byte of each sequence, (sequences,)."""
        self.bounds: NDArray[np.int64] = mapped(
            self.index_path, "<i8", bounds, HEADER_BYTES + 12 * sequences
        )
        """First sequence of each document, and the number of sequences, (documents + 1,)."""
        self.tokens: NDArray[Any] = mapped(self.tokens_path, self.dtype)
        """Ids of the whole .bin file."""
        held, named = len(self.tokens), 0
        if sequences:
            named = int(self.pointers[-1]) // self.dtype.itemsize + int(self.lengths[-1])
        if held < named:
            raise ConfigError(f"{self.tokens_path}: holds {held} tokens, its index names {named}")

    def _read_header(self) -> tuple[np.dtype[Any], int, int]:
        size_bytes = self.index_path.stat().st_size
        with self.index_path.open("rb") as handle:
            head = handle.read(HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            raise ConfigError(f"{self.index_path}: {size_bytes} bytes are no index")
        magic, version, code, sequences, bounds = _HEADER.unpack(head)
        if magic != MAGIC or version != VERSION or code not in DTYPES:
            raise ConfigError(
                f"{self.index_path}: no index of Megatron's (magic {magic!r}, version {version},"
                f" token type {code})"
            )
        if size_bytes != index_bytes(sequences, bounds) or not bounds:
            raise ConfigError(
                f"{self.index_path}: {size_bytes} bytes, expected {index_bytes(sequences, bounds)}"
                f" for {sequences} sequences and {bounds} document bounds; the file is cut off or"
                " of another kind"
            )
        return np.dtype(DTYPES[code]).newbyteorder("<"), sequences, bounds

    @property
    def num_documents(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_sequences(self) -> int:
        return len(self.lengths)

    @cached_property
    def num_tokens(self) -> int:
        return sum(int(part.sum(dtype=np.int64)) for part in chunks_of(self.lengths))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First token of each document, and the end of the last, (documents + 1,); in memory."""
        ends = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        starts: NDArray[np.int64] = ends[self.bounds]
        return starts

    def sequence(self, index: int) -> NDArray[Any]:
        start = int(self.pointers[index]) // self.dtype.itemsize
        return self.tokens[start : start + int(self.lengths[index])]

    def document(self, index: int) -> NDArray[Any]:
        """Return the ids of one document, its sequences joined."""
        numbers = range(int(self.bounds[index]), int(self.bounds[index + 1]))
        parts = [self.sequence(number) for number in numbers]
        return np.concatenate(parts) if parts else self.tokens[:0]


def write_index(
    handle: IO[bytes],
    *,
    dtype: np.dtype[Any],
    lengths: NDArray[np.int32],
    bounds: NDArray[np.int64],
) -> None:
    """Write an .idx file: of ids of that type, sequences of these lengths, (sequences,), and
    documents with these first sequences and an end, (documents + 1,). Both may be mapped: they are
    read a piece at a time."""
    handle.write(_HEADER.pack(MAGIC, VERSION, dtype_code(dtype), len(lengths), len(bounds)))
    for part in chunks_of(lengths):
        handle.write(part.astype("<i4", copy=False).tobytes())
    pointer = 0
    for part in chunks_of(lengths):
        ends = pointer + np.cumsum(part, dtype=np.int64) * dtype.itemsize
        handle.write(np.concatenate([[pointer], ends[:-1]]).astype("<i8", copy=False).tobytes())
        pointer = int(ends[-1])
    for part in chunks_of(bounds):
        handle.write(part.astype("<i8", copy=False).tobytes())


def chunks_of(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield a long array in pieces that fit in the memory."""
    for start in range(0, len(array), _CHUNK):
        yield array[start : start + _CHUNK]


def mapped(
    path: Path, dtype: str | np.dtype[Any], count: int | None = None, offset: int = 0
) -> NDArray[Any]:
    """Map so many numbers of a file; None: all of them."""
    count = path.stat().st_size // np.dtype(dtype).itemsize if count is None else count
    if not count:
        return np.zeros(0, dtype=dtype)  # an empty range can't be mapped
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(count,))
