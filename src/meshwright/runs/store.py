"""A study as a directory: `study.yaml`, `runs/<id>/{run.json, events.jsonl, stdout.log,
stderr.log}`; all else follows from these."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic
from uuid import uuid4

from meshwright.platforms.files import replace_file, write_all
from meshwright.platforms.hidden import hide
from meshwright.runs.record import DIGITS, AnyRun, Event, record_of
from meshwright.values.errors import ConfigError, StudyError
from meshwright.values.text import html_table, read_yaml

__all__ = [
    "NO_LINKS",
    "RUN_LOGS",
    "Store",
    "Study",
    "append_line",
    "read_form",
    "read_lines",
    "read_store",
    "refuse_foreign",
    "study_folder",
    "write_whole",
]

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""How file systems say that they have no hard links."""
FORM = 1
"""Version of the directory's form."""
RUN_LOGS = ("stdout.log", "stderr.log")
"""What a run prints, in its own folder."""
_STUDY, _RUNS, _RUN, _EVENTS = "study.yaml", "runs", "run.json", "events.jsonl"
_OURS = {
    *(_STUDY, _RUNS, "lock", "results.csv", "failed.csv", "best.yaml", "best", "top.log"),
    *("machine.json", "tracking"),
}
"""What a study's folder may hold before study.yaml: leavings of a start that was cut short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What a study compares. It may not change while the study lasts; how many runs and how they
    are chosen may."""

    study_id: str
    request: dict[str, Any]
    """Of `meshwright plan`."""
    trial: dict[str, Any]
    """What one run is: the software, its steps, its settings."""

    def _repr_html_(self) -> str:
        """Show what is compared in a notebook."""
        asked = [
            (key, str(value))
            for part in (self.request, self.trial)
            for key, value in part.items()
            if value not in (None, {}, [])
        ]
        return html_table(f"Study {self.study_id[:8]}", ("of all runs", "value"), asked)


@dataclass(frozen=True, kw_only=True, slots=True)
class Store(Generic[AnyRun]):
    """A study's directory, opened."""

    folder: Path
    study: Study
    read: Callable[..., AnyRun]
    """Makes a run of the content of its two files, as `record_of` does."""

    def run_folder(self, run_id: str) -> Path:
        """Where a run's files are."""
        return self.folder / _RUNS / run_id

    def label(self, run_id: str) -> str:
        """Name a run for the platform, in 40 letters at most; no other run has the same."""
        return f"mw-{self.study.study_id[:8]}-{run_id[-DIGITS:]}"

    def records(self) -> tuple[AnyRun, ...]:
        """Return every run, in the order in which they were chosen."""
        files = sorted((self.folder / _RUNS).glob(f"*/{_RUN}"))
        runs = (self._read_run(path.parent) for path in files)
        return tuple(sorted(runs, key=lambda record: record.number))

    def plan(self, record: AnyRun, event: Event) -> AnyRun:
        """Write a run that was chosen."""
        folder = self.run_folder(record.run_id)
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _RUN, hide(json.dumps(record.to_dict(), indent=1)) + "\n")
        return self.add(record, event)

    def add(self, record: AnyRun, event: Event) -> AnyRun:
        """Append an event to a run, on the disk before this returns."""
        line = hide(json.dumps(event.to_dict())) + "\n"
        append_line(self.run_folder(record.run_id) / _EVENTS, line)
        return record.after(event)

    def _read_run(self, folder: Path) -> AnyRun:
        try:
            content = json.loads((folder / _RUN).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StudyError(f"{folder / _RUN}: cannot be read ({error})") from None
        return self.read(content, read_lines(folder / _EVENTS), source=str(folder))


def study_folder(
    folder: Path,
    *,
    request: dict[str, Any],
    trial: dict[str, Any],
    read: Callable[..., Any] = record_of,
    usual: Mapping[str, Any] | None = None,
) -> Store[Any]:
    """Open a study, or begin one; StudyError where the folder holds another study, or something
    else. `read` reads its runs: those of training, unless it is told. `usual` is what a field of
    the request is that an older study does not say."""
    found = _read_study(folder)
    if found is None:
        refuse_foreign(folder, _OURS, f"no {_STUDY}, so it is no study")
        found = Study(study_id=uuid4().hex, request=request, trial=trial)
        _make_runs(folder)
        if not _write_first(folder / _STUDY, _study_text(found)):
            # Another start was quicker: its study is this one.
            found = _read_study(folder) or found
    _refuse_other(folder, {**(usual or {}), **found.request}, request)
    _refuse_other(folder, found.trial, trial)
    _make_runs(folder)
    return Store(folder=folder, study=found, read=read)


def read_store(folder: Path) -> Store:
    """Open a study to look at it; ConfigError where there is none."""
    found = _read_study(folder)
    if found is None:
        raise ConfigError(f"{folder}: no study here ({_STUDY} is missing)")
    return Store(folder=folder, study=found, read=record_of)


def refuse_foreign(folder: Path, ours: Collection[str], but: str) -> None:
    """Return where a folder holds nothing but what is ours; StudyError names what else it holds."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise StudyError(f"{folder}: {error.strerror or error}") from None
    for name in names:
        if name not in ours and not name.startswith("."):
            raise StudyError(f"{folder}: holds {name} and {but}; give an empty or a new folder")


def _refuse_other(folder: Path, there: dict[str, Any], asked: dict[str, Any]) -> None:
    for key in [*there, *(key for key in asked if key not in there)]:
        if not _same(there.get(key), asked.get(key)):
            raise StudyError(
                f"{folder}: holds another study, with {key}={there.get(key)!r} where"
                f" {asked.get(key)!r} is asked for now; give another folder, or ask for the same"
                " again"
            )


def _same(there: Any, asked: Any) -> bool:
    """Whether two values in plain types are equal; a key that only one of them has is None in the
    other, which was written before there was such a field."""
    if isinstance(there, dict) and isinstance(asked, dict):
        return all(_same(there.get(key), asked.get(key)) for key in {*there, *asked})
    return bool(there == asked)


def _study_text(study: Study) -> str:
    import yaml

    content = {"study": FORM, **asdict(study)}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)


def read_form(path: Path, *, key: str, what: str, form: int) -> dict[str, Any] | None:
    """Return what the file says that makes a folder a study or a training; None where it is not
    there, StudyError where its form, under `key`, is not known."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StudyError(
            f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not a text in UTF-8'})"
        ) from None
    content = read_yaml(text, what=str(path))
    if content.get(key) != form:
        raise StudyError(
            f"{path}: form {content.get(key)!r} of {what}; this version of Meshwright knows"
            f" form {form}"
        )
    return content


def _read_study(folder: Path) -> Study | None:
    path = folder / _STUDY
    content = read_form(path, key="study", what="a study", form=FORM)
    if content is None:
        return None
    try:
        return Study(
            study_id=str(content["study_id"]),
            request=dict(content["request"]),
            trial=dict(content["trial"]),
        )
    except (KeyError, TypeError, ValueError):
        raise StudyError(
            f"{path}: expected study_id, request and trial, as `meshwright tune` writes them"
        ) from None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, but for one that was left half written."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None
    for line in text.split("\n"):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def append_line(path: Path, line: str) -> None:
    """Append a line and wait for the disk; the half line of a killed process is closed first."""
    with _writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            write_all(handle, ("\n" if torn else "").encode() + line.encode())
            os.fsync(handle)
        finally:
            os.close(handle)


def _make_runs(folder: Path) -> None:
    with _writing(folder):
        (folder / _RUNS).mkdir(parents=True, exist_ok=True)


def _keep_name(folder: Path) -> None:
    """Wait until the disk has the folder's names, so that a renamed file outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_first(path: Path, text: str) -> bool:
    """Write a file whole where there is none; False where another process was quicker. The file is
    written beside, then linked, which fails where there is one, on NFS too."""
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    with _writing(path):
        write_whole(beside, text)
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            beside.replace(path)
            return True
        finally:
            beside.unlink(missing_ok=True)
        _keep_name(path.parent)
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody sees a part of it; StudyError where the disk is full."""
    with _writing(path):
        replace_file(path, text.encode())
        _keep_name(path.parent)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in one line what keeps a file from being written."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "; make room and start again: finished runs are kept" if full else ""
        raise StudyError(f"{path}: cannot be written ({error.strerror or error}){advice}") from None
