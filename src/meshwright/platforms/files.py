"""Files that a person names: read up to a limit, written whole, and never over what is not ours."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from meshwright.values.errors import ConfigError
from meshwright.values.secrets import holds_secret
from meshwright.values.units import MIB

__all__ = [
    "MOST_BYTES",
    "check_ours",
    "make_folder",
    "put_file",
    "read_input",
    "replace_file",
    "write_all",
]

_HEAD_BYTES = 4096
"""Within these first bytes a file of ours has its mark."""

_SEARCHED_BYTES = MIB
"""Of a file, in which secrets are looked for: scripts and configurations are below it."""
MOST_BYTES = 256 * MIB
"""The largest file that is read into memory whole: a plan of a million chips has below 20 MiB."""


def read_input(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Return what a file holds; OSError where it cannot be read, and ConfigError where it has more
    than `most` bytes, or no end, as a device."""
    with path.open("rb") as handle:
        data = handle.read(most + 1)
    if len(data) > most:
        raise ConfigError(
            f"{path}: more than {most // MIB} MiB, the most that is read; is this the right file?"
        )
    return data


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, or take the one that is there; ConfigError where neither
    can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{folder}: cannot be made a folder ({reason})") from error


def put_file(
    path: Path,
    content: str | bytes,
    *,
    mark: str | None = None,
    force: bool = False,
    executable: bool = False,
    private: bool = False,
) -> None:
    """Write a file, in UTF-8, that others see whole or not at all; a link's target is written.

    Nothing of another's is written over unless `force` is given: ConfigError says so. `mark` stands
    near the start of each file that the same command writes, such as a table's header, and tells
    ours; without one, a file with other contents is taken for another's. With `private`, and where
    it holds a secret's value, only its owner can read a new file. ConfigError where it cannot
    be written; its cause is the OSError, by which the command line tells a full disk from a wrong
    name.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file() and not target.is_dir():
            _write_through(target, data)  # a pipe, a terminal, /dev/stdout: nothing to replace
            return
        if not force:
            _refuse_another(path, mark or data)
        private = private or (not target.exists() and _holds_secret(data))
        mode = (0o600 if private else _mode(target)) | (0o111 if executable else 0)
        mode &= 0o700 if private else 0o7777
        replace_file(target, data, mode=mode)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from error


def check_ours(path: Path | None, *, mark: str, force: bool = False) -> None:
    """Refuse before the work what `put_file` would refuse after it: a folder, a place that is not
    there, another's file."""
    if path is None:
        return
    try:
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {path.parent}")
        if path.is_dir():
            raise ConfigError(f"{path}: this is a folder")
        if not force:
            _refuse_another(path, mark)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from error


def _write_through(target: Path, data: bytes) -> None:
    with target.open("wb") as handle:
        handle.write(data)


def _refuse_another(path: Path, known: str | bytes) -> None:
    """Refuse a file that lacks its mark, a text, or that differs from the bytes to be written."""
    if not path.is_file():
        return
    with path.open("rb") as handle:
        head = handle.read(_HEAD_BYTES if isinstance(known, str) else len(known) + 1)
    is_ours = known.encode() in head if isinstance(known, str) else known == head
    if head and not is_ours:
        raise ConfigError(
            f"{path}: there already, and not what this command wrote; give another name, or --force"
            " to write over it"
        )


def replace_file(target: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Put a file in its place at once, its bytes on the disk; a failure leaves what was there."""
    if target.is_dir():
        raise IsADirectoryError(None, "this is a folder", str(target))
    # The name is short, so that a file whose own name is as long as names may be can be written.
    handle, beside = tempfile.mkstemp(dir=target.parent, prefix=".part-")
    try:
        try:
            os.fchmod(handle, mode)
            write_all(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        Path(beside).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(beside).unlink()
        raise


def write_all(handle: int, data: bytes) -> None:
    """Write bytes to an open file, in as many calls as that takes."""
    while data:
        data = data[os.write(handle, data) :]


def _holds_secret(data: bytes) -> bool:
    return holds_secret(data[:_SEARCHED_BYTES].decode("utf-8", "replace"))


def _mode(target: Path) -> int:
    """Return the mode of the file that is there, else that of a new file of this process."""
    with suppress(FileNotFoundError):
        return target.stat().st_mode & 0o7777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
