"""Workspaces, datasets and results of jobs: the words of NGC CLI for each, and what it answers."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from meshwright.platforms.base_command.executor import (
    JSON,
    LIST_JOBS,
    ask_ngc,
    json_of,
    require_ngc,
)
from meshwright.values.errors import ConfigError, LauncherError, UnknownNameError
from meshwright.values.options import Option

__all__ = ["Place", "Storage", "Target", "Transfer", "choose", "staged"]


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
        size = source.stat().st_size
        return Chosen(source=source, files=(source.name,), size_bytes=size, excluded=0)
    files, size_bytes, excluded = [], 0, 0
    for path in _walk(source):
        name = path.relative_to(source).as_posix()
        if _is_out(name, exclude):
            excluded += 1
            continue
        files.append(name)
        size_bytes += path.stat().st_size
    if not files:
        beside = f" beside the {excluded:,} that are left out" if excluded else ""
        raise ConfigError(f"{source}: holds no file{beside}")
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


Kind = Literal["workspace", "dataset", "result"]
_ID_LETTERS = 22
"""Of a workspace's id; NGC CLI takes a name of that length for one, and refuses to give it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Whose storage, and where; None: as NGC CLI is set up."""

    org: Annotated[
        str | None, Option("Organization [default: as NGC CLI is set up].", metavar="NAME")
    ] = None
    team: Annotated[str | None, Option("Team.", metavar="NAME")] = None
    ace: Annotated[str | None, Option("Environment (ACE).", metavar="NAME")] = None

    def words(self) -> list[str]:
        given = {"--org": self.org, "--team": self.team, "--ace": self.ace}
        return [word for flag, value in given.items() if value for word in (flag, value)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """`workspace=NAME`, `dataset=NAME`, `result=JOB` or `result=JOB:REPLICA`."""

    kind: Kind
    name: str

    @staticmethod
    def of(text: str) -> Target:
        """Read it; ConfigError with the forms."""
        kind, equals, name = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{text}: expected workspace=NAME, dataset=NAME or result=JOB")
        for known in get_args(Kind):
            if kind == known:
                return Target(kind=known, name=name)
        raise UnknownNameError("kind of storage", kind, get_args(Kind))

    def words(self, verb: str) -> list[str]:
        """Return the beginning of a command."""
        return ["ngc", "base-command", self.kind, verb]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """An upload or a download."""

    command: tuple[str, ...]
    code: int
    """Of NGC CLI; 0 where nothing was started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """What NGC CLI is asked to do. With `is_dry` nothing is asked: commands are only made."""

    place: Place = field(default_factory=Place)
    is_dry: bool = False
    patience_s: float = 120.0
    """For an answer; transfers take as long as they take."""

    def create(self, target: Target) -> dict[str, Any]:
        """Make a workspace, or return the one of that name; `created` says which."""
        if target.kind != "workspace":
            by = "its upload" if target.kind == "dataset" else "its job"
            raise ConfigError(f"a {target.kind} is made by {by}; create takes workspace=NAME")
        if len(target.name) == _ID_LETTERS:
            raise ConfigError(
                f"{target.name}: has {_ID_LETTERS} letters, as an id has; NGC CLI refuses such a"
                " name"
            )
        words = [*target.words("create"), "--name", target.name, *self.place.words(), *JSON]
        if self.is_dry:
            return {"command": words}
        named = self.listed("workspace", name=target.name)
        there = [row for row in named if row.get("name") == target.name]
        if there:
            return {**there[0], "created": False}
        made = self._answer(words)
        return {**(made if isinstance(made, Mapping) else {}), "created": True}

    def listed(
        self, kind: Kind, *, name: str | None = None, owned: bool = False
    ) -> list[Mapping[str, Any]]:
        """Return workspaces, datasets, or for results the jobs of 30 days that have ended."""
        require_ngc(patience_s=self.patience_s)
        if kind == "result":
            if name or owned:
                raise ConfigError(
                    "results are listed by their jobs; --name and --owned are of workspaces and"
                    " datasets"
                )
            words = list(LIST_JOBS)
        else:
            words = ["ngc", "base-command", kind, "list", *(["--name", name] if name else [])]
            words += ["--owned"] if owned else []
        found = self._answer([*words, *self.place.words(), *JSON])
        rows = found if isinstance(found, list) else []
        if kind == "result":
            return [row for row in rows if (row.get("jobStatus") or {}).get("endedAt")]
        return rows

    def upload(
        self, target: Target, chosen: Chosen, *, to: str | None = None, quiet: bool = False
    ) -> Transfer:
        """Send files to a workspace, or to a dataset, which is made where there is none."""
        if target.kind == "result":
            raise ConfigError("a result is what its job writes; upload to a workspace or a dataset")
        if target.kind == "dataset" and to is not None:
            raise ConfigError("--to: a dataset has the folders of its source; leave it out")
        if to is not None and not to.startswith("/"):
            raise ConfigError(f"--to {to}: expected a path in the workspace that begins with /")
        rest = ["--yes"] if target.kind == "dataset" else [*(["--destination", to] if to else [])]
        with nullcontext(chosen.source) if self.is_dry else staged(chosen) as source:
            sent = ["--source", str(source.absolute()), *rest]
            words = [*target.words("upload"), target.name, *sent]
            return self._transfer([*words, *self.place.words()], quiet=quiet)

    def download(
        self,
        target: Target,
        to: Path,
        *,
        files: Sequence[str] = (),
        folders: Sequence[str] = (),
        exclude: Sequence[str] = (),
        quiet: bool = False,
    ) -> Transfer:
        """Fetch a workspace, a dataset or a result, or what is named of it."""
        if exclude and target.kind == "workspace":
            raise ConfigError(
                "--exclude: NGC CLI has it for datasets and results; name what is wanted by --file"
                " and --dir"
            )
        if not self.is_dry:
            to.mkdir(parents=True, exist_ok=True)
        choice = [("--file", files), ("--dir", folders), ("--exclude", exclude)]
        some = [word for flag, values in choice for value in values for word in (flag, value)]
        words = [*target.words("download"), target.name, "--dest", str(to.absolute()), *some]
        return self._transfer([*words, *self.place.words()], quiet=quiet)

    def mount(
        self,
        target: Target,
        folder: Path,
        *,
        mode: Literal["RO", "RW"],
        remote: str | None = None,
        quiet: bool = False,
    ) -> Transfer:
        if target.kind != "workspace":
            raise ConfigError(
                f"{target.kind}={target.name}: NGC CLI mounts workspaces; jobs mount datasets"
            )
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder}: is no folder")
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"{folder}: is not empty; what is in it would be hidden")
        if not self.is_dry:
            folder.mkdir(parents=True, exist_ok=True)
        at = ["--remote-path", remote] if remote else []
        words = [*target.words("mount"), target.name, str(folder.absolute()), "--mode", mode, *at]
        return self._transfer([*words, *self.place.words()], quiet=quiet)

    def unmount(self, folder: Path, *, quiet: bool = False) -> Transfer:
        words = ["ngc", "base-command", "workspace", "unmount", str(folder.absolute())]
        return self._transfer(words, quiet=quiet)

    def _answer(self, words: Sequence[str]) -> Any:
        require_ngc(patience_s=self.patience_s)
        answer = ask_ngc(words, patience_s=self.patience_s)
        found = json_of(answer.out)
        if answer.code or found is None:
            lines = (answer.err or answer.out).strip().splitlines()
            said = lines[-1].strip() if lines else f"exit code {answer.code}"
            raise LauncherError(f"bcp: {' '.join(words[1:4])}: {said}")
        return found

    def _transfer(self, words: Sequence[str], *, quiet: bool) -> Transfer:
        """Let NGC CLI show its progress; quiet is for programs that read our answer."""
        if self.is_dry:
            return Transfer(command=tuple(words), code=0)
        require_ngc(patience_s=self.patience_s)
        out = subprocess.DEVNULL if quiet else None
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=out, env=os.environ, check=False
        )
        return Transfer(command=tuple(words), code=done.returncode)
