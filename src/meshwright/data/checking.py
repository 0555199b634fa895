"""Whether the files that a step made are still what its manifest says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.data.manifest import MANIFEST, sha256_of
from meshwright.data.sources import corpus_files, find_corpus
from meshwright.errors import ConfigError

__all__ = ["CheckReport", "check", "faults_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """What was read back, and what is wrong."""

    files: int
    size_bytes: int
    faults: tuple[str, ...]


def check(
    words: Sequence[str], *, corpus: str | None = None, chunks: int | None = None, workers: int = 1
) -> CheckReport:
    """Read every file of manifests back; with `corpus`, also look whether all of its files are
    named.

    Args:
        words: folders with a manifest, or manifests.
        corpus: one that is known by name; its files are looked for in all manifests together.
        chunks: the first chunks of it.
        workers: threads that read.

    Raises:
        ConfigError: no manifest there, for a step that has not ended has none; or it can't be read.
    """
    if workers < 1:
        raise ConfigError(f"--workers {workers}: expected 1 or more")
    if chunks is not None and corpus is None:
        raise ConfigError("--chunks has no effect without --corpus")
    manifests = [_manifest_of(Path(word)) for word in words]
    rows = [row for manifest in manifests for row in _rows(manifest)]
    faults = [fault for manifest in manifests for fault in faults_of(manifest, workers=workers)]
    if corpus is not None:
        named = {row["name"] for row in rows}
        absent = [
            file.name
            for file in corpus_files(find_corpus(corpus), chunks=chunks)
            if file.name not in named
        ]
        faults += [f"{name}: of {corpus}, in no manifest" for name in absent]
    return CheckReport(
        files=len(rows), size_bytes=sum(row["size_bytes"] for row in rows), faults=tuple(faults)
    )


def faults_of(manifest: Path, *, workers: int = 1) -> list[str]:
    """Read every file of a manifest back, and return what is wrong."""
    try:
        rows = _rows(manifest)
    except ConfigError as error:
        return [str(error)]
    if not rows:
        return [f"{manifest}: names no file"]
    with ThreadPoolExecutor(workers) as pool:
        return [
            fault
            for found in pool.map(lambda row: list(_faults_of_file(manifest, row)), rows)
            for fault in found
        ]


def _faults_of_file(manifest: Path, row: dict[str, Any]) -> Iterator[str]:
    path = manifest.parent / row["name"]
    if not path.exists() or path.stat().st_size != row["size_bytes"]:
        yield f"{path}: is not there with its {row['size_bytes']:,} bytes"
    elif row.get("sha256") is None or sha256_of(path) != row["sha256"]:
        yield f"{path}: does not have the sha256 of {manifest.name}"


def _manifest_of(path: Path) -> Path:
    found = path / MANIFEST if path.is_dir() else path
    if not found.is_file():
        raise ConfigError(f"{found}: is not there; a step writes it when the last rank has ended")
    return found


def _rows(manifest: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(manifest.read_bytes())["files"]
        for row in rows:
            row["name"], row["size_bytes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{manifest}: no manifest: {error}") from None
    return rows
