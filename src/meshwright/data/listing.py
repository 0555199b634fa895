"""A step's inputs, frozen in natural order for all ranks; and the manifest of what it made."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from meshwright.data.atomic import create_once, write_whole
from meshwright.platforms.files import read_input
from meshwright.values.errors import ConfigError

__all__ = [
    "MANIFEST",
    "FileRecord",
    "InputFile",
    "Manifest",
    "freeze",
    "natural_key",
    "pair_records",
    "read_frozen",
    "read_manifest",
    "settle",
    "sha256_of",
    "spread",
    "text_of",
    "walk",
    "write_manifest",
]

MANIFEST = "manifest.json"
_FORM = 1
MANIFEST_BEGINS = b'{\n "manifest": %d,' % _FORM
"""By which a manifest is told from a user's file of that name."""
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """One file of a manifest."""

    name: str
    """Relative to the manifest's folder."""
    size_bytes: int
    sha256: str | None = None
    archive: str | None = None
    """The compression whose own check of the whole file passed (`zst`, `gz`, `bz2`, `xz`)."""
    documents: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The files that a step made, in its order."""

    step: str
    settings: dict[str, Any]
    """What the files depend on."""
    files: tuple[FileRecord, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def documents(self) -> int | None:
        """Of all files; None where one does not say."""
        return _sum(file.documents for file in self.files)

    @property
    def tokens(self) -> int | None:
        """Of all files; None where one does not say."""
        return _sum(file.tokens for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        rows = [_known(asdict(file)) for file in self.files]
        totals = {name: getattr(self, name) for name in ("size_bytes", "documents", "tokens")}
        return {
            "manifest": _FORM,
            "step": self.step,
            "settings": self.settings,
            "totals": {"files": len(rows), **_known(totals)},
            "files": rows,
        }


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


def write_manifest(
    folder: Path,
    *,
    step: str,
    settings: dict[str, Any],
    files: Sequence[FileRecord],
    name: str = MANIFEST,
) -> Manifest:
    """Write the manifest of a folder, or under another name that of some files in it. Equal inputs
    give equal bytes, so every rank that finds the step complete may write it."""
    manifest = Manifest(step=step, settings=settings, files=tuple(files))
    write_whole(folder / name, (json.dumps(manifest.to_dict(), indent=1) + "\n").encode())
    return manifest


def read_manifest(folder: Path, *, name: str = MANIFEST) -> Manifest:
    """Read the manifest of a folder; ConfigError where there is none, or no manifest in it."""
    path = folder / name
    try:
        content = json.loads(read_input(path))
        files = tuple(FileRecord(**row) for row in content["files"])
        return Manifest(step=content["step"], settings=content["settings"], files=files)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{path}: no manifest that `meshwright data` wrote") from None


def pair_records(
    prefix: Path, *, sha256: str, documents: int, tokens: int
) -> tuple[FileRecord, FileRecord]:
    """Return what a manifest says of a .bin, whose hash is known, and its .idx."""
    ids, index = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    size_bytes = ids.stat().st_size
    counts: dict[str, Any] = {"documents": documents, "tokens": tokens}
    return (
        FileRecord(name=ids.name, size_bytes=size_bytes, sha256=sha256, **counts),
        FileRecord(name=index.name, size_bytes=index.stat().st_size, sha256=sha256_of(index)),
    )


def sha256_of(path: Path) -> str:
    """Hash a file without reading it into memory."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256", _bufsize=_BLOCK_BYTES).hexdigest()


_LISTING_FORM = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """One file that a step reads."""

    path: str
    """As it is opened."""
    name: str
    """Relative to the folder that it was found in, unique in a list: outputs are named after it."""
    size_bytes: int
    """0 where it is not known, as of a URL."""
    sha256: str | None = None
    """What its bytes must hash to, where that is known."""

    def to_dict(self) -> dict[str, Any]:
        return _known(
            {
                "name": self.name,
                "path": self.path,
                "size_bytes": self.size_bytes,
                "sha256": self.sha256,
            }
        )


def natural_key(name: str) -> tuple[Any, ...]:
    """Return a key that puts `part_2` before `part_10`, folder by folder; names that differ in
    zeros alone are told apart by the text."""
    folders = [filter(None, re.split(r"([0-9]+)", part)) for part in name.split("/")]
    keys = (
        tuple((int(run), "") if run.isdecimal() else (-1, run) for run in runs) for runs in folders
    )
    return (*keys, (name,))


def walk(words: Sequence[str], *, suffixes: Iterable[str] = ()) -> list[InputFile]:
    """Return the files that paths, folders, patterns and `@FILE` lists of paths name, in natural
    order of their names. A file that is named twice is there once. Folders are walked to the
    bottom, without names that begin with a dot and without manifests of ours; `suffixes` (empty:
    any) holds for what folders hold. A pattern is better quoted: the shell has a limit on arguments
    and this has none. ConfigError for a word that names nothing."""
    wanted = tuple(suffixes)
    found: dict[str, InputFile] = {}
    places: set[str] = set()
    for file in (file for word in spread(words) for file in _files_of(word, wanted)):
        place = os.path.abspath(file.path)
        if place in places:
            continue
        places.add(place)
        if file.name in found:
            raise ConfigError(
                f"{found[file.name].path} and {file.path} would both be written as {file.name};"
                " give the folder above them"
            )
        found[file.name] = file
    return sorted(found.values(), key=lambda file: natural_key(file.name))


def spread(words: Sequence[str]) -> Iterator[str]:
    """Yield words, the lines of `@FILE` in its place."""
    for word in words:
        if not word.startswith("@"):
            yield word
            continue
        try:
            text = Path(word[1:]).read_text(encoding="utf-8", errors="surrogateescape")
        except OSError as error:
            raise ConfigError(f"{word}: {error.strerror}") from None
        yield from filter(None, map(str.strip, text.splitlines()))


def text_of(path: Path, *, what: str) -> str:
    """Read a small file of the user's; ConfigError where it is absent or no text in UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise ConfigError(f"{what}: {reason}") from None


def _files_of(word: str, suffixes: tuple[str, ...]) -> Iterator[InputFile]:
    path = Path(word)
    if path.is_dir():
        files = list(_walk_folder(path, suffixes))
        if not files:
            shown = [suffix for suffix in suffixes if suffix.startswith(".")]
            kinds = f" that ends in {', '.join(shown)}" if suffixes else ""
            raise ConfigError(f"{word}: the folder holds no file{kinds}")
        yield from files
    elif path.is_file():
        yield InputFile(path=word, name=path.name, size_bytes=path.stat().st_size)
    elif has_magic(word):
        matches = sorted(match for match in glob(word, recursive=True) if Path(match).is_file())
        if not matches:
            raise ConfigError(f"{word}: no file matches")
        top = _fixed_part(word)
        for match in matches:
            name = os.path.relpath(match, top)
            yield InputFile(path=match, name=name, size_bytes=os.stat(match).st_size)
    else:
        raise ConfigError(f"{word}: no such file or folder")


def _fixed_part(pattern: str) -> str:
    """Return the folders of a pattern before the first star: names are relative to them."""
    parts = pattern.split("/")
    fixed = next(place for place, part in enumerate(parts) if has_magic(part))
    return "/".join(parts[:fixed]) or ("/" if pattern.startswith("/") else ".")


def _walk_folder(top: Path, suffixes: tuple[str, ...]) -> Iterator[InputFile]:
    pending = [str(top)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    pending.append(entry.path)
                    continue
                fits = not suffixes or f"/{entry.name}".endswith(suffixes)
                if entry.is_file() and fits and not _is_manifest(entry):
                    name = entry.path.removeprefix(str(top)).lstrip("/")
                    yield InputFile(path=entry.path, name=name, size_bytes=entry.stat().st_size)


def _is_manifest(entry: os.DirEntry[str]) -> bool:
    """Whether a file is an earlier step's manifest, which lies beside its outputs."""
    if not entry.name.endswith(MANIFEST):
        return False
    with open(entry.path, "rb") as handle:
        return handle.read(len(MANIFEST_BEGINS)) == MANIFEST_BEGINS


def freeze(
    path: Path, files: Sequence[InputFile], *, settings: Mapping[str, Any]
) -> list[InputFile]:
    """Write the list unless it exists, and return what it holds then: ranks that saw the folder at
    other times agree on one list. `settings` are what the outputs depend on. ConfigError where the
    list was made with others, naming the first that differs."""
    header = {"listing": _LISTING_FORM, "files": len(files), "settings": dict(settings)}
    rows = [header, *(file.to_dict() for file in files)]
    create_once(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return read_frozen(path, settings=settings)


def read_frozen(path: Path, *, settings: Mapping[str, Any]) -> list[InputFile]:
    """Read a list that was frozen; ConfigError where it was made with other settings."""
    with path.open(encoding="utf-8") as handle:
        header = json.loads(next(handle))
        if header.get("listing") != _LISTING_FORM:
            raise ConfigError(
                f"{path}: form {header.get('listing')!r} of a list; this version of Meshwright"
                f" knows form {_LISTING_FORM}"
            )
        _same_settings(path, header["settings"], json.loads(json.dumps(dict(settings))))
        return [InputFile(**json.loads(line)) for line in handle]


def settle(
    path: Path,
    words: Sequence[str],
    *,
    settings: Mapping[str, Any],
    suffixes: Iterable[str] = (),
    check: Callable[[Sequence[InputFile]], object] | None = None,
) -> list[InputFile]:
    """Return the frozen list of a step where there is one, else walk the words and freeze what they
    name. Inputs that a step has consumed are still in its list, so a second start goes on although
    they are gone. `check` raises ConfigError for inputs that the step can't take: before anything
    is frozen, so that a second start with other words is free."""
    asked = {"inputs": list(words), **settings}
    if path.exists():
        return read_frozen(path, settings=asked)
    files = walk(words, suffixes=suffixes)
    if check is not None:
        check(files)
    return freeze(path, files, settings=asked)


def _same_settings(path: Path, there: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for key in [*there, *(key for key in asked if key not in there)]:
        if there.get(key) != asked.get(key):
            raise ConfigError(
                f"{path.parent}: was begun with {key}={_short(there.get(key))}, and"
                f" {_short(asked.get(key))} is asked for now; ask for the same again, or give"
                " another output"
            )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
