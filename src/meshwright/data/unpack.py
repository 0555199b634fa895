"""`extract`: archives to plain files, one by one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.data.archives import ARCHIVES, BLOCK_BYTES, archive_of, open_plain, plain_name
from meshwright.data.atomic import writing
from meshwright.data.listing import InputFile, settle
from meshwright.data.manifest import sha256_of
from meshwright.data.ranks import Place, find_place
from meshwright.data.results import StepResult, conclude
from meshwright.data.steps import Record, ShardError, run_step, state_folder
from meshwright.values.errors import ConfigError

__all__ = ["extract"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unpack:
    """One archive."""

    name: str
    size_bytes: int
    path: str
    output: Path
    consume: bool


def extract(
    inputs: Sequence[str],
    *,
    output: Path,
    workers: int = 1,
    consume: bool = False,
    place: Place | None = None,
    progress: bool = True,
) -> StepResult:
    """Extract `.zst`, `.gz`, `.bz2` and `.xz` files under their own names into a folder.

    `inputs` are files, folders, patterns and `@FILE` lists. With `consume` an archive is removed
    once its plain file was read back and has the hash of what came out of the archive. ConfigError
    for what is no archive, or for two of one plain name.
    """
    settings = {"step": "extract"}
    endings = [f".{kind}" for kind in ARCHIVES]
    state = state_folder(output, "extract")
    files = settle(
        state / "list.jsonl", inputs, settings=settings, suffixes=endings, check=_check_names
    )
    tasks = [
        _Unpack(
            name=plain_name(f.name),
            size_bytes=f.size_bytes,
            path=f.path,
            output=output / plain_name(f.name),
            consume=consume,
        )
        for f in files
    ]
    report = run_step(
        "extract",
        tasks,
        _unpack,
        state=state,
        place=place or find_place(os.environ),
        workers=workers,
        still_there=_still_there,
        after=_remove if consume else None,
        progress=progress,
    )
    return conclude(report, output=output, settings=settings)


def _check_names(files: Sequence[InputFile]) -> None:
    plain: dict[str, str] = {}
    for file in files:
        name = plain_name(file.name)
        if name == file.name:
            raise ConfigError(
                f"{file.path}: expected a name that ends in"
                f" {', '.join(f'.{kind}' for kind in ARCHIVES)}"
            )
        if name in plain:
            raise ConfigError(
                f"{plain[name]} and {file.path} would both be written as {name}; extract them into"
                " two folders"
            )
        plain[name] = file.path


def _unpack(task: _Unpack) -> Record:
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with open_plain(task.path) as plain, writing(task.output) as handle:
            while block := plain.read(BLOCK_BYTES):
                digest.update(block)
                size_bytes += handle.write(block)
    except FileNotFoundError:
        raise ShardError(f"{task.path}: does not exist", "missing") from None
    if task.consume and sha256_of(task.output) != digest.hexdigest():
        raise ShardError(
            f"{task.output}: read back, it is not what was written; the archive is kept",
            "verification",
        )
    return {
        "size_bytes": size_bytes,
        "sha256": digest.hexdigest(),
        "archive": archive_of(task.path),
        "verified": task.consume,
    }


def _still_there(task: _Unpack, record: Mapping[str, Any]) -> bool:
    """Whether the plain file is there; one that an earlier start did not read back is done again
    before its archive is removed."""
    if task.consume and not record["verified"] and Path(task.path).exists():
        return False
    return task.output.exists() and task.output.stat().st_size == record["size_bytes"]


def _remove(task: _Unpack, record: Record) -> None:
    Path(task.path).unlink(missing_ok=True)
