"""Files of a git repository at a tag."""

from __future__ import annotations

import io
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshwright.values.switches import release_key

__all__ = ["Tree", "commit_of", "read_tree", "release_tags", "submodule_of", "tags_like"]

Tree = Mapping[str, str]
"""The text of each file by its path."""
_ENDINGS = (".py", ".yaml", "versions1.json")
_RELEASE = re.compile(r"v(\d+)\.(\d+)\.(\d+)(rc\d+)?")


def release_tags(repository: Path) -> tuple[str, ...]:
    """Return the tags of releases, oldest first; of a version that has candidates only, its last
    candidate."""
    text = _git(repository, "tag", "--list").decode()
    newest: dict[tuple[int, ...], tuple[int, str]] = {}
    for tag in text.split():
        found = _RELEASE.fullmatch(tag)
        if not found:
            continue
        version = tuple(int(part) for part in found.groups()[:3])
        candidate = int(found[4][2:]) if found[4] else 10**6
        newest[version] = max(newest.get(version, (-1, "")), (candidate, tag))
    return tuple(tag for _, (_, tag) in sorted(newest.items()))


def tags_like(repository: Path, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return the tags whose name is as the pattern, oldest first."""
    found = [pattern.fullmatch(tag) for tag in _git(repository, "tag", "--list").decode().split()]
    versions = [(release_key(tag[0]), tag[0]) for tag in found if tag]
    return tuple(name for _, name in sorted(versions))


def commit_of(repository: Path) -> str:
    """Return the newest commit, by its first seven digits."""
    return _git(repository, "rev-parse", "--short=7", "HEAD").decode().strip()


def submodule_of(repository: Path, tag: str, path: str) -> str:
    """Return the commit of another repository that a tag names at a path."""
    return _git(repository, "ls-tree", tag, "--", path).decode().split()[2]


def read_tree(
    repository: Path,
    tag: str,
    *,
    folders: Sequence[str],
    endings: tuple[str, ...] = _ENDINGS,
) -> Tree:
    """Return the source and pages of the folders that the tag has; a clone without large files
    will do."""
    listed = _git(repository, "ls-tree", "-r", "-z", tag, "--", *folders).decode().split("\0")
    lines = (line.split("\t") for line in listed if line.endswith(endings))
    wanted = {path: words for words, path in lines}
    objects = [words.split()[2] for words in wanted.values()]
    packed = io.BytesIO(_git(repository, "cat-file", "--batch", given="\n".join(objects)))
    found: dict[str, str] = {}
    for path in wanted:
        head = packed.readline().split()
        if head[-1] != b"missing":
            found[path] = packed.read(int(head[2])).decode()
            packed.readline()
    return found


def _git(repository: Path, *words: str, given: str = "") -> bytes:
    return subprocess.run(
        ["git", "-C", str(repository), *words],
        input=given.encode(),
        check=True,
        capture_output=True,
        env={**os.environ, "GIT_NO_LAZY_FETCH": "1"},
    ).stdout
