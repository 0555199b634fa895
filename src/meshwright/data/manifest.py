"""What a step made: every file with its size, hash, documents and tokens; written when all shards
are done, from the journals."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwright.data.atomic import write_whole
from meshwright.values.errors import ConfigError

__all__ = ["MANIFEST", "FileRecord", "Manifest", "read_manifest", "sha256_of", "write_manifest"]

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
        """Of all files."""
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
        """Return it in plain types, without what is not known."""
        rows = [
            {key: value for key, value in asdict(file).items() if value is not None}
            for file in self.files
        ]
        totals = {
            "files": len(rows),
            "size_bytes": self.size_bytes,
            "documents": self.documents,
            "tokens": self.tokens,
        }
        known = {key: value for key, value in totals.items() if value is not None}
        return {
            "manifest": _FORM,
            "step": self.step,
            "settings": self.settings,
            "totals": known,
            "files": rows,
        }


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def write_manifest(
    folder: Path,
    *,
    step: str,
    settings: dict[str, Any],
    files: Sequence[FileRecord],
    name: str = MANIFEST,
) -> Manifest:
    """Write the manifest of a folder, or under another name that of some files in it.

    Equal inputs give equal bytes, so every rank that finds the step complete may write it.
    """
    manifest = Manifest(step=step, settings=settings, files=tuple(files))
    write_whole(folder / name, (json.dumps(manifest.to_dict(), indent=1) + "\n").encode())
    return manifest


def read_manifest(folder: Path, *, name: str = MANIFEST) -> Manifest:
    """Read the manifest of a folder; ConfigError where there is none, or no manifest in it."""
    path = folder / name
    try:
        content = json.loads(path.read_bytes())
        files = tuple(FileRecord(**row) for row in content["files"])
        return Manifest(step=content["step"], settings=content["settings"], files=files)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise ConfigError(f"{path}: no manifest that `meshwright data` wrote") from None


def sha256_of(path: Path) -> str:
    """Hash a file without reading it into memory."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256", _bufsize=_BLOCK_BYTES).hexdigest()
