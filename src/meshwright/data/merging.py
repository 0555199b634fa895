"""Several .bin/.idx pairs into one, in the order given; a kill loses at most the pair that was
being copied."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.atomic import locked, sync_folder, write_whole, writing
from meshwright.data.blending import prefixes_of
from meshwright.data.indexed import IndexedFile, chunks_of, write_index
from meshwright.data.manifest import FileRecord, Manifest, sha256_of, write_manifest
from meshwright.data.steps import state_folder
from meshwright.values.errors import ConfigError

__all__ = ["MergeReport", "merge"]

_BLOCK_BYTES = 1 << 22
_STATE = "merge.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeReport:
    """What was merged."""

    prefix: str
    sources: tuple[str, ...]
    documents: int
    sequences: int
    tokens: int
    manifest: Manifest


def merge(words: Sequence[str], *, output_prefix: str, overwrite: bool = False) -> MergeReport:
    """Join pairs of files: the ids one after the other, the indices shifted; as Megatron's
    merge_datasets.py, byte for byte.

    Raises:
        ConfigError: no pair, ids of different types, a pair whose files don't fit each other, an
                     output that exists.
    """
    sources = prefixes_of(words)
    final = Path(output_prefix)
    if not final.name or final.is_dir():
        raise ConfigError(
            f"--output-prefix {output_prefix!r}: expected the beginning of a file's name, not a"
            " folder"
        )
    if any(
        os.path.realpath(f"{source}.bin") == os.path.realpath(f"{final}.bin") for source in sources
    ):
        raise ConfigError(f"{final}: is an input too; give another --output-prefix")
    files = [IndexedFile(source) for source in sources]
    _check(files)
    if Path(f"{final}.idx").exists() and not overwrite:
        raise ConfigError(f"{final}.idx exists; give another --output-prefix, or --overwrite")
    scratch = state_folder(final.parent, f"merge-{final.name}")
    scratch.mkdir(parents=True, exist_ok=True)
    with locked(scratch / "merge.lock"):
        sha256 = _join_tokens(files, scratch)
        documents, sequences = _write_index(files, scratch, Path(f"{final}.idx"))
        (scratch / "bin").rename(f"{final}.bin")
        sync_folder(final.parent)
        manifest = _manifest(
            final, sources, documents=documents, tokens=_tokens(files), sha256=sha256
        )
        for name in (_STATE, "lengths", "bounds"):
            (scratch / name).unlink(missing_ok=True)
    return MergeReport(
        prefix=output_prefix,
        sources=tuple(sources),
        documents=documents,
        sequences=sequences,
        tokens=_tokens(files),
        manifest=manifest,
    )


def _check(files: Sequence[IndexedFile]) -> None:
    first = files[0]
    for file in files:
        if file.dtype != first.dtype:
            raise ConfigError(
                f"{file.prefix}: ids are {file.dtype}, and those of {first.prefix} are"
                f" {first.dtype}; tokenize them alike"
            )
        size_bytes = file.tokens_path.stat().st_size
        if size_bytes != file.num_tokens * file.dtype.itemsize:
            raise ConfigError(
                f"{file.tokens_path}: {size_bytes} bytes, and its index names {file.num_tokens}"
                f" tokens of {file.dtype.itemsize}; `meshwright data verify` says more"
            )


def _tokens(files: Sequence[IndexedFile]) -> int:
    return sum(file.num_tokens for file in files)


def _join_tokens(files: Sequence[IndexedFile], scratch: Path) -> str:
    """Append the ids of every source that is not in the output yet, and return the hash of the
    whole."""
    expected: dict[str, Any] = {
        "sources": [file.prefix for file in files],
        "sizes": [file.tokens_path.stat().st_size for file in files],
    }
    state: dict[str, Any] = {**expected, "done": 0}
    try:
        there = json.loads((scratch / _STATE).read_bytes())
        if {key: there[key] for key in expected} == expected:
            state = there
    except FileNotFoundError:
        pass
    path = scratch / "bin"
    sha256 = hashlib.sha256()
    with path.open("r+b" if path.exists() else "w+b", buffering=_BLOCK_BYTES) as handle:
        handle.truncate(sum(expected["sizes"][: state["done"]]))
        for block in iter(lambda: handle.read(_BLOCK_BYTES), b""):
            sha256.update(block)
        for file in files[state["done"] :]:
            with file.tokens_path.open("rb") as source:
                for block in iter(lambda: source.read(_BLOCK_BYTES), b""):
                    handle.write(block)
                    sha256.update(block)
            handle.flush()
            os.fsync(handle.fileno())
            state["done"] += 1
            write_whole(scratch / _STATE, json.dumps(state).encode())
    return sha256.hexdigest()


def _write_index(files: Sequence[IndexedFile], scratch: Path, path: Path) -> tuple[int, int]:
    """Write the index of all sources, and return documents and sequences; a piece at a time."""
    sequences = 0
    with (scratch / "lengths").open("wb") as lengths, (scratch / "bounds").open("wb") as bounds:
        bounds.write(np.zeros(1, dtype="<i8").tobytes())
        for file in files:
            for part in chunks_of(file.lengths):
                lengths.write(part.tobytes())
            for part in chunks_of(file.bounds[1:]):
                bounds.write((part + sequences).astype("<i8").tobytes())
            sequences += file.num_sequences
    documents = sum(file.num_documents for file in files)
    mapped = (
        np.memmap(scratch / "lengths", dtype="<i4", mode="r")
        if sequences
        else np.zeros(0, dtype="<i4")
    )
    with writing(path) as handle:
        write_index(
            handle,
            dtype=files[0].dtype,
            lengths=mapped,
            bounds=np.memmap(scratch / "bounds", dtype="<i8", mode="r"),
        )
    return documents, sequences


def _manifest(
    final: Path, sources: Sequence[str], *, documents: int, tokens: int, sha256: str
) -> Manifest:
    grown, index = Path(f"{final}.bin"), Path(f"{final}.idx")
    files = (
        FileRecord(
            name=grown.name,
            size_bytes=grown.stat().st_size,
            sha256=sha256,
            documents=documents,
            tokens=tokens,
        ),
        FileRecord(name=index.name, size_bytes=index.stat().st_size, sha256=sha256_of(index)),
    )
    settings = {"sources": list(sources)}
    return write_manifest(
        final.parent,
        step="merge",
        settings=settings,
        files=files,
        name=f"{final.name}.manifest.json",
    )
