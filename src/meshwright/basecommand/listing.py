"""Which files an upload sends, and a folder of links that holds exactly those."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from meshwright.errors import ConfigError

__all__ = ["Chosen", "choose", "staged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Files of a folder, or one file."""

    source: Path
    files: tuple[str, ...]
    """Relative to the source, in order; of one file its name."""
    size_bytes: int
    excluded: int
    """Files that patterns left out."""


def choose(source: Path, *, exclude: Sequence[str] = ()) -> Chosen:
    """List what an upload of a source sends; links are followed, as NGC CLI does.

    A pattern is one of fnmatch: without a slash it is held against the name of every file and
    folder, with one against the path from the source. A folder that matches is left out with all
    that is in it. ConfigError where nothing is left.
    """
    if not source.exists():
        raise ConfigError(f"{source}: does not exist")
    if source.is_file():
        return Chosen(
            source=source, files=(source.name,), size_bytes=source.stat().st_size, excluded=0
        )
    files, size_bytes, excluded = [], 0, 0
    for path in _walk(source):
        name = path.relative_to(source).as_posix()
        if _is_out(name, exclude):
            excluded += 1
            continue
        files.append(name)
        size_bytes += path.stat().st_size
    if not files:
        raise ConfigError(
            f"{source}: holds no file"
            + (f" beside the {excluded:,} that are left out" if excluded else "")
        )
    return Chosen(
        source=source, files=tuple(sorted(files)), size_bytes=size_bytes, excluded=excluded
    )


@contextmanager
def staged(chosen: Chosen) -> Iterator[Path]:
    """Give the source itself, or where files are left out a folder of links to the others.

    NGC CLI follows links. Its own `--exclude` is for workspaces alone, and holds a pattern against
    the path behind a leading slash, so that `raw/*.tmp` leaves nothing out.
    """
    if not chosen.excluded:
        yield chosen.source
        return
    with tempfile.TemporaryDirectory(prefix="meshwright-upload-") as folder:
        place = Path(folder)
        for name in chosen.files:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).symlink_to((chosen.source / name).resolve())
        yield place


def _walk(source: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for folder, folders, names in os.walk(source, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield from (path for name in sorted(names) if (path := Path(folder, name)).is_file())


def _is_out(name: str, patterns: Sequence[str]) -> bool:
    parts = name.split("/")
    paths = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    return any(
        fnmatchcase(text, pattern.strip("/"))
        for pattern in patterns
        for text in (paths if "/" in pattern.strip("/") else parts)
    )
