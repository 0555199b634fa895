"""Whether a .bin/.idx pair is whole: header, sizes, pointers, bounds, ids and its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.encoders import Encoder
from meshwright.data.fetching import corpus_files, find_corpus
from meshwright.data.indexed import IndexedFile, chunks_of, token_dtype
from meshwright.data.listing import MANIFEST, sha256_of
from meshwright.data.pairs import prefixes_of
from meshwright.values.errors import ConfigError
from meshwright.values.units import counted

__all__ = ["Check", "CheckReport", "Verified", "check", "faults_of", "quick_look", "verify"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """What was read back, and what is wrong."""

    files: int
    size_bytes: int
    faults: tuple[str, ...]


def check(
    words: Sequence[str], *, corpus: str | None = None, chunks: int | None = None, workers: int = 1
) -> CheckReport:
    """Read every file of manifests back in some threads; `words` name them or their folders. With
    `corpus`, look whether they name all of its files together, or those of its first `chunks`.
    ConfigError where a manifest is absent, as of a step that has not ended, or can't be read."""
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


_SHOWN = 60
_CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    found: str
    """In words: what is, and where it is wrong what was expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """One pair."""

    prefix: str
    checks: tuple[Check, ...]
    samples: tuple[tuple[int, str], ...] = ()
    """Document and the beginning of its text."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def verify(
    words: Sequence[str],
    *,
    vocab_size: int | None = None,
    encoder: Encoder | None = None,
    samples: int = 3,
) -> list[Verified]:
    """Look at every byte of the pairs that prefixes, folders or patterns name. Ids must be below
    `vocab_size`, None: that of the encoder, else of the manifest. The encoder decodes `samples`
    documents from the first to the last. ConfigError for an absent file, or a number that is
    none."""
    for name, value, least in (("vocab_size", vocab_size, 1), ("samples", samples, 0)):
        if value is not None and value < least:
            raise ConfigError(f"{name}={value}: expected {least} or more")
    return [
        _verify(prefix, vocab_size or (encoder.vocab_size if encoder else None), encoder, samples)
        for prefix in prefixes_of(words)
    ]


def quick_look(prefix: str) -> Verified:
    """Look at a pair's index and its sizes, and at no id: seconds for a corpus that takes hours to
    read. ConfigError where a file does not exist."""
    [prefix] = prefixes_of([prefix])
    try:
        file = IndexedFile(prefix)
    except ConfigError as error:
        return _broken(prefix, error)
    return Verified(prefix=prefix, checks=tuple(_structure(file)))


def _broken(prefix: str, error: ConfigError) -> Verified:
    return Verified(prefix=prefix, checks=(Check("header and sizes", False, str(error)),))


def _structure(file: IndexedFile) -> list[Check]:
    head = (
        f"version 1, ids {file.dtype.name}, {counted(file.num_sequences, 'sequence')},"
        f" {counted(file.num_documents, 'document')}"
    )
    return [
        Check("header and sizes", True, head),
        _lengths(file),
        _pointers(file),
        _bounds(file),
        _size(file),
    ]


def _verify(prefix: str, vocab_size: int | None, encoder: Encoder | None, samples: int) -> Verified:
    try:
        file = IndexedFile(prefix)
    except ConfigError as error:
        return _broken(prefix, error)
    checks = _structure(file)
    manifest = _verifying_manifest_of(prefix)
    known = vocab_size or (manifest["settings"].get("vocab_size") if manifest else None)
    sound = all(check.passed for check in checks)
    lowest, highest, sha256 = _read_tokens(file)
    checks += _ids(file, lowest, highest, known)
    if manifest is not None:
        checks += _against_manifest(file, manifest, sha256)
        end = manifest["settings"].get("eod")
        if end is not None and sound:
            checks.append(_ends(file, int(end)))
    texts = _decoded(file, encoder, samples) if encoder is not None and sound else ()
    return Verified(prefix=prefix, checks=tuple(checks), samples=tuple(texts))


def _lengths(file: IndexedFile) -> Check:
    least = min((int(part.min()) for part in chunks_of(file.lengths)), default=1)
    found = f"the shortest sequence has {least} ids" if file.num_sequences else "none"
    return Check("lengths", least > 0, found)


def _pointers(file: IndexedFile) -> Check:
    expected, at = 0, 0
    for lengths, pointers in zip(chunks_of(file.lengths), chunks_of(file.pointers), strict=True):
        ends = expected + np.cumsum(lengths, dtype=np.int64) * file.dtype.itemsize
        wrong = np.flatnonzero(pointers != np.concatenate([[expected], ends[:-1]]))
        if wrong.size:
            place = int(wrong[0])
            should = int(expected if place == 0 else ends[place - 1])
            found = f"sequence {at + place}: byte {int(pointers[place])}, expected {should}"
            return Check("pointers", False, found)
        expected, at = int(ends[-1]), at + len(lengths)
    return Check("pointers", True, "each is the sum of the lengths before it")


def _bounds(file: IndexedFile) -> Check:
    first, last = int(file.bounds[0]), int(file.bounds[-1])
    if first != 0 or last != file.num_sequences:
        found = f"bounds go from {first} to {last}, expected 0 to {file.num_sequences}"
        return Check("documents", False, found)
    before, at = 0, 0
    for part in chunks_of(file.bounds):
        wrong = np.flatnonzero(np.diff(part, prepend=before) < 0)
        if wrong.size:
            found = f"bound {at + int(wrong[0])} is smaller than the one before it"
            return Check("documents", False, found)
        before, at = int(part[-1]), at + len(part)
    return Check("documents", True, f"bounds rise from 0 to {last}")


def _size(file: IndexedFile) -> Check:
    size_bytes, expected = file.tokens_path.stat().st_size, file.num_tokens * file.dtype.itemsize
    found = f"{size_bytes:,} bytes for {file.num_tokens:,} tokens" + (
        "" if size_bytes == expected else f", expected {expected:,}"
    )
    return Check(".bin", size_bytes == expected, found)


def _read_tokens(file: IndexedFile) -> tuple[int, int, str]:
    """Return lowest and highest id, and the hash of the .bin file, in one pass."""
    lowest, highest, sha256 = 0, -1, hashlib.sha256()
    size = _CHUNK_BYTES // file.dtype.itemsize * file.dtype.itemsize
    with file.tokens_path.open("rb") as handle:
        for block in iter(lambda: handle.read(size), b""):
            sha256.update(block)
            ids = np.frombuffer(
                block[: len(block) // file.dtype.itemsize * file.dtype.itemsize], dtype=file.dtype
            )
            if ids.size:
                lowest, highest = min(lowest, int(ids.min())), max(highest, int(ids.max()))
    return lowest, highest, sha256.hexdigest()


def _ids(file: IndexedFile, lowest: int, highest: int, vocab_size: int | None) -> Iterator[Check]:
    limit = "" if vocab_size is None else f", vocabulary {vocab_size:,}"
    below = "" if lowest >= 0 else f", the lowest {lowest:,}"
    passed = lowest >= 0 and (vocab_size is None or highest < vocab_size)
    yield Check("ids", passed, f"the highest is {highest:,}{limit}{below}")
    if vocab_size is not None:
        wanted = token_dtype(vocab_size)
        note = f", and Megatron writes {wanted.name} for a vocabulary of {vocab_size:,}"
        passed = file.dtype == wanted
        yield Check("type of ids", passed, f"{file.dtype.name}{'' if passed else note}")


def _verifying_manifest_of(prefix: str) -> dict[str, Any] | None:
    """Return the manifest beside a pair that names it, where there is one."""
    path = Path(prefix)
    for candidate in sorted(path.parent.glob("*.manifest.json")):
        try:
            content = json.loads(candidate.read_bytes())
            if any(row["name"] == f"{path.name}.bin" for row in content["files"]):
                return dict(content)
        except (ValueError, KeyError, TypeError):
            continue
    return None


def _against_manifest(file: IndexedFile, manifest: dict[str, Any], sha256: str) -> Iterator[Check]:
    rows = {row["name"]: row for row in manifest["files"]}
    row, index = rows[file.tokens_path.name], rows.get(file.index_path.name, {})
    seen: dict[str, tuple[object, object]] = {
        "documents": (file.num_documents, row.get("documents")),
        "tokens": (file.num_tokens, row.get("tokens")),
        "sha256": (sha256, row.get("sha256")),
        "sha256 of .idx": (sha256_of(file.index_path), index.get("sha256")),
    }
    for what, (found, said) in seen.items():
        if said is not None:
            note = "" if found == said else f", the manifest says {said}"
            yield Check(f"manifest: {what}", found == said, f"{found}{note}")


def _ends(file: IndexedFile, end: int) -> Check:
    """Look whether every document ends with the token that it was given."""
    at = 0
    for part in chunks_of(file.bounds[1:]):
        lasts = part - 1
        filled = np.flatnonzero(np.diff(part, prepend=file.bounds[at]) > 0)
        starts = np.asarray(file.pointers[lasts[filled]]) // file.dtype.itemsize
        ids = file.tokens[starts + file.lengths[lasts[filled]] - 1]
        wrong = np.flatnonzero(ids != end)
        if wrong.size:
            place = int(filled[wrong[0]])
            found = f"document {at + place} ends with {int(ids[wrong[0]])}, expected {end}"
            return Check("ends of documents", False, found)
        at += len(part)
    return Check("ends of documents", True, f"every one ends with {end}")


def _decoded(file: IndexedFile, encoder: Encoder, samples: int) -> Iterator[tuple[int, str]]:
    count = min(samples, file.num_documents)
    for number in range(count):
        place = number * (file.num_documents - 1) // max(1, count - 1)
        first = file.document(place)[: 2 * _SHOWN].tolist()
        ids = [token for token in first if token < encoder.vocab_size]
        yield place, encoder.decode(ids)[:_SHOWN]
