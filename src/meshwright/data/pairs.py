"""Several .bin/.idx pairs: weighed for a mixture, merged into one, and their documents' lengths."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshwright.data.atomic import locked, sync_folder, write_whole, writing
from meshwright.data.indexed import IndexedFile, chunks_of, mapped, prefix_path, write_index
from meshwright.data.listing import (
    Manifest,
    natural_key,
    pair_records,
    read_manifest,
    spread,
    write_manifest,
)
from meshwright.data.steps import state_folder
from meshwright.values.errors import ConfigError
from meshwright.values.units import counted

__all__ = [
    "FORMS",
    "QUANTILES",
    "Blend",
    "By",
    "LengthStats",
    "MergeReport",
    "blend",
    "even_sum",
    "merge",
    "prefixes_of",
    "stats",
]


def prefixes_of(words: Sequence[str]) -> list[str]:
    """Return the prefixes in the words' order; those of a folder or a pattern in natural order.
    ConfigError for a word that names none, for half a pair, and for a prefix given twice."""
    found: list[str] = []
    for word in words:
        for prefix in _of_word(word):
            for ending in ("idx", "bin"):
                if not Path(f"{prefix}.{ending}").is_file():
                    raise ConfigError(
                        f"{prefix}.{ending} does not exist; expected a prefix, or a folder with"
                        " pairs of .bin and .idx"
                    )
            if prefix in found:
                raise ConfigError(f"{prefix}: is named twice")
            found.append(prefix)
    return found


def _of_word(word: str) -> Iterator[str]:
    if word.startswith("@"):
        for line in spread([word]):
            yield from _of_word(line)
    elif Path(word).is_dir():
        yield from _of_files(word, [str(path) for path in Path(word).iterdir()])
    elif has_magic(word):
        yield from _of_files(word, glob(word, recursive=True))
    else:
        yield word.removesuffix(".idx").removesuffix(".bin")


def _of_files(word: str, names: Sequence[str]) -> list[str]:
    found = {name[:-4] for name in names if name.endswith((".idx", ".bin"))}
    if not found:
        raise ConfigError(f"{word}: holds no .bin and .idx")
    return sorted(found, key=natural_key)


By = Literal["tokens", "documents", "equal"]
_DIGITS = 6
FORMS = ("megatron", "nemo", "bridge")


@dataclass(frozen=True, kw_only=True, slots=True)
class Blend:
    """A mixture."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...]
    """Shares of the samples, multiples of 0.000001 that sum to 1 exactly as they are written."""
    tokens: tuple[int, ...]

    def words(self) -> list[str]:
        return [f"{weight:.{_DIGITS}f}" for weight in self.weights]

    def epochs(self, train_tokens: int) -> list[float]:
        """Return how often each corpus is read in a training of so many tokens."""
        pairs = zip(self.weights, self.tokens, strict=True)
        return [weight * train_tokens / tokens for weight, tokens in pairs]

    def forms(self) -> dict[str, str]:
        """Return the text for Megatron-LM's flag, NeMo 1.x's field and Megatron-Bridge's."""
        pairs = list(zip(self.words(), self.prefixes, strict=True))
        flag = " ".join(f"{weight} {shlex.quote(prefix)}" for weight, prefix in pairs)
        field = ",".join(f"{weight},{prefix}" for weight, prefix in pairs)
        names = json.dumps(list(self.prefixes), separators=(",", ":"))
        return {
            "megatron": f"--data-path {flag}",
            "nemo": shlex.quote(f"model.data.data_prefix=[{field}]"),
            "bridge": shlex.quote(f"dataset.blend=[{names},[{','.join(self.words())}]]"),
        }


def blend(
    words: Sequence[str],
    *,
    by: By = "tokens",
    temperature: float = 1.0,
    weights: Sequence[float] | Mapping[str, float] | None = None,
) -> Blend:
    """Weigh the pairs of prefixes, folders or patterns by their size, as `by` counts it, raised to
    1 / temperature: above 1 small corpora weigh more; or by `weights` in their order, any positive
    numbers, which are divided by their sum. ConfigError for a pair that is absent, broken or empty,
    and for weights that are not one for each, or not positive."""
    prefixes = prefixes_of(words)
    files = [IndexedFile(prefix) for prefix in prefixes]
    for file in files:
        if not file.num_tokens:
            raise ConfigError(f"{file.prefix}: holds no token")
    if not temperature > 0:
        raise ConfigError(f"--temperature {temperature}: expected more than 0")
    if weights is not None and (by, temperature) != ("tokens", 1.0):
        raise ConfigError(
            "--weights say all: --by and --temperature have no effect on them, leave them out"
        )
    if weights is None:
        sizes = {
            "tokens": [f.num_tokens for f in files],
            "documents": [f.num_documents for f in files],
            "equal": [1] * len(files),
        }
        raw = [size ** (1 / temperature) for size in sizes[by]]
    else:
        raw = _given(prefixes, weights)
    return Blend(
        prefixes=tuple(prefixes),
        weights=tuple(even_sum(raw)),
        tokens=tuple(file.num_tokens for file in files),
    )


def _given(prefixes: Sequence[str], weights: Sequence[float] | Mapping[str, float]) -> list[float]:
    given = list(weights.values()) if isinstance(weights, Mapping) else list(weights)
    if isinstance(weights, Mapping):
        unknown = [name for name in weights if name not in prefixes]
        if unknown:
            raise ConfigError(
                f"--weights {unknown[0]}=...: is none of the pairs: {', '.join(prefixes)}"
            )
        given = [weights[prefix] for prefix in prefixes if prefix in weights]
    if len(given) != len(prefixes):
        raise ConfigError(
            f"--weights: {len(given)} for {counted(len(prefixes), 'pair')} ({', '.join(prefixes)})"
        )
    if not all(0 < weight < float("inf") for weight in given):
        raise ConfigError(
            f"--weights {','.join(map(str, given))}: expected numbers above 0; leave out what is"
            " not to be read"
        )
    return given


def even_sum(raw: Sequence[float]) -> list[float]:
    """Round shares down, give the rest to those that lost most; ConfigError if one vanishes."""
    unit = 10**_DIGITS
    exact = [weight / sum(raw) * unit for weight in raw]
    floors = [int(value) for value in exact]
    left = unit - sum(floors)
    order = sorted(range(len(raw)), key=lambda place: (floors[place] - exact[place], place))
    for place in order[:left]:
        floors[place] += 1
    if 0 in floors:
        raise ConfigError(
            f"pair {floors.index(0) + 1} would weigh less than {1 / unit:.{_DIGITS}f}; merge small"
            " corpora, or raise --temperature"
        )
    return [value / unit for value in floors]


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
    was_there: bool = False
    """Whether an earlier start had made it whole."""


def merge(words: Sequence[str], *, output_prefix: str, overwrite: bool = False) -> MergeReport:
    """Join pairs of files: the ids one after the other, the indices shifted; as Megatron's
    merge_datasets.py, byte for byte. A second start goes on, or reports what is there whole.
    ConfigError for no pair, ids of different types, a pair whose
    files don't fit each other, and an output that exists."""
    sources = prefixes_of(words)
    final = prefix_path(output_prefix)
    if os.path.realpath(f"{final}.bin") in {os.path.realpath(f"{one}.bin") for one in sources}:
        raise ConfigError(f"{final}: is an input too; give another --output-prefix")
    files = [IndexedFile(source) for source in sources]
    _check(files)
    settings = _settings(files)
    scratch = state_folder(final.parent, f"merge-{final.name}")
    if Path(f"{final}.idx").exists() and not overwrite and not _is_begun(scratch, settings):
        there = _done(final, settings, files)
        if there is not None:
            return _report(output_prefix, files, there, was_there=True)
        raise ConfigError(
            f"{final}.idx exists, and is not what these pairs make; give another --output-prefix,"
            " or --overwrite"
        )
    scratch.mkdir(parents=True, exist_ok=True)
    with locked(scratch / "merge.lock"):
        sha256 = _join_tokens(files, scratch)
        _write_index(files, scratch, Path(f"{final}.idx"))
        (scratch / "bin").rename(f"{final}.bin")
        sync_folder(final.parent)
        documents = sum(file.num_documents for file in files)
        tokens = sum(file.num_tokens for file in files)
        manifest = write_manifest(
            final.parent,
            step="merge",
            settings=settings,
            files=pair_records(final, sha256=sha256, documents=documents, tokens=tokens),
            name=_manifest_name(final),
        )
        for name in (_STATE, "lengths", "bounds"):
            (scratch / name).unlink(missing_ok=True)
    return _report(output_prefix, files, manifest)


def _settings(files: Sequence[IndexedFile]) -> dict[str, Any]:
    """Return what a merge depends on."""
    return {
        "sources": [file.prefix for file in files],
        "sizes": [file.tokens_path.stat().st_size for file in files],
    }


def _manifest_name(final: Path) -> str:
    return f"{final.name}.manifest.json"


def _is_begun(scratch: Path, settings: Mapping[str, Any]) -> bool:
    """Whether a merge of the same pairs was stopped here, so that a second start goes on."""
    try:
        there = json.loads((scratch / _STATE).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    return {key: there.get(key) for key in settings} == settings


def _done(
    final: Path, settings: Mapping[str, Any], files: Sequence[IndexedFile]
) -> Manifest | None:
    """Return the manifest of a merge of the same pairs, unchanged since, whose pair is there."""
    path = final.parent / _manifest_name(final)
    if not path.is_file():
        return None
    found = read_manifest(final.parent, name=path.name)
    whole = all(
        (final.parent / file.name).is_file()
        and (final.parent / file.name).stat().st_size == file.size_bytes
        for file in found.files
    )
    made_s = path.stat().st_mtime
    unchanged = all(file.tokens_path.stat().st_mtime <= made_s for file in files)
    return found if whole and unchanged and found.settings == settings else None


def _report(
    prefix: str, files: Sequence[IndexedFile], manifest: Manifest, *, was_there: bool = False
) -> MergeReport:
    return MergeReport(
        prefix=prefix,
        sources=tuple(file.prefix for file in files),
        documents=sum(file.num_documents for file in files),
        sequences=sum(file.num_sequences for file in files),
        tokens=sum(file.num_tokens for file in files),
        manifest=manifest,
        was_there=was_there,
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


def _join_tokens(files: Sequence[IndexedFile], scratch: Path) -> str:
    """Append the ids of sources that are not in the output yet; return the whole's hash."""
    expected = _settings(files)
    state: dict[str, Any] = {**expected, "done": 0}
    if _is_begun(scratch, expected) and (scratch / "bin").exists():
        state = json.loads((scratch / _STATE).read_bytes())
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


def _write_index(files: Sequence[IndexedFile], scratch: Path, path: Path) -> None:
    """Write the index of all sources, a piece at a time."""
    sequences = 0
    with (scratch / "lengths").open("wb") as lengths, (scratch / "bounds").open("wb") as bounds:
        bounds.write(np.zeros(1, dtype="<i8").tobytes())
        for file in files:
            for part in chunks_of(file.lengths):
                lengths.write(part.tobytes())
            for part in chunks_of(file.bounds[1:]):
                bounds.write((part + sequences).astype("<i8").tobytes())
            sequences += file.num_sequences
    lengths_of, bounds_of = mapped(scratch / "lengths", "<i4"), mapped(scratch / "bounds", "<i8")
    with writing(path) as handle:
        write_index(handle, dtype=files[0].dtype, lengths=lengths_of, bounds=bounds_of)


QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_COUNTED = 1 << 22
"""Lengths below it are counted one by one; documents beyond are few and kept as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthStats:
    """One pair, or several taken together."""

    prefix: str
    documents: int
    sequences: int
    tokens: int
    size_bytes: int
    """Of both files."""
    quantiles: dict[float, int]
    """Document lengths in tokens: the smallest that this share of the documents does not exceed."""
    histogram: tuple[tuple[int, int, int, int], ...]
    """From, below, documents, tokens, by powers of two; the first holds empty documents."""

    @property
    def mean(self) -> float:
        """Tokens per document."""
        return self.tokens / self.documents if self.documents else 0.0


def stats(words: Sequence[str]) -> list[LengthStats]:
    """Count the documents of some pairs, and of all together; ConfigError for a broken pair."""
    files = [IndexedFile(prefix) for prefix in prefixes_of(words)]
    counts = [_count(file) for file in files]
    pairs = zip(files, counts, strict=True)
    found = [_stats(file.prefix, [file], [count]) for file, count in pairs]
    return found if len(files) == 1 else [*found, _stats("all", files, counts)]


@dataclass(frozen=True, slots=True)
class _Counts:
    """Documents by length."""

    short: NDArray[np.int64]
    """(_COUNTED,)."""
    long: NDArray[np.int64]
    """Lengths of the others, ascending."""


def _count(file: IndexedFile) -> _Counts:
    short, long = np.zeros(_COUNTED, dtype=np.int64), list[NDArray[np.int64]]()
    for lengths in _document_lengths(file):
        fitting = lengths[lengths < _COUNTED]
        short += np.bincount(fitting, minlength=_COUNTED)
        long.append(lengths[lengths >= _COUNTED])
    return _Counts(short, np.sort(np.concatenate(long)) if long else np.zeros(0, dtype=np.int64))


def _document_lengths(file: IndexedFile) -> Iterator[NDArray[np.int64]]:
    """Yield the tokens of each document, by the first bytes of its sequences and the next one's."""
    before = 0
    total_bytes = file.num_tokens * file.dtype.itemsize
    for part in chunks_of(file.bounds[1:]):
        inside = np.minimum(part, max(0, file.num_sequences - 1))
        firsts = file.pointers[inside] if file.num_sequences else 0
        ends = np.where(part < file.num_sequences, firsts, total_bytes)
        yield np.diff(ends, prepend=before) // file.dtype.itemsize
        before = int(ends[-1])


def _stats(name: str, files: Sequence[IndexedFile], counts: Sequence[_Counts]) -> LengthStats:
    short = np.sum([count.short for count in counts], axis=0)
    long = np.sort(np.concatenate([count.long for count in counts]))
    documents = int(short.sum()) + len(long)
    paths = [path for file in files for path in (file.index_path, file.tokens_path)]
    return LengthStats(
        prefix=name,
        documents=documents,
        sequences=sum(file.num_sequences for file in files),
        tokens=sum(file.num_tokens for file in files),
        size_bytes=sum(path.stat().st_size for path in paths),
        quantiles={share: _quantile(short, long, share) for share in QUANTILES if documents},
        histogram=tuple(_histogram(short, long)),
    )


def _quantile(short: NDArray[np.int64], long: NDArray[np.int64], share: float) -> int:
    running = np.cumsum(short)
    rank = max(1, int(np.ceil(share * (int(running[-1]) + len(long)))))
    if rank <= running[-1]:
        return int(np.searchsorted(running, rank))
    return int(long[rank - int(running[-1]) - 1])


def _histogram(
    short: NDArray[np.int64], long: NDArray[np.int64]
) -> Iterator[tuple[int, int, int, int]]:
    start, below = 0, 1
    most = int(long[-1]) if len(long) else int(np.flatnonzero(short)[-1]) if short.any() else -1
    while start <= most:
        if start < _COUNTED:
            part = short[start:below]
            documents = int(part.sum())
            tokens = int((part * np.arange(start, start + len(part))).sum())
        else:
            held = long[(long >= start) & (long < below)]
            documents, tokens = len(held), int(held.sum())
        if documents:
            yield start, below, documents, tokens
        start, below = below, 2 * below
