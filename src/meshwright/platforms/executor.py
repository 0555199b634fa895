"""What starts jobs and says how they are: the one contract that every launcher's executor keeps."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from meshwright.platforms.files import replace_file
from meshwright.platforms.job import Job, JobText
from meshwright.values.errors import ConfigError, LauncherError, LauncherSilent
from meshwright.values.secrets import holds_secret

__all__ = [
    "UNKNOWN",
    "Answer",
    "Executor",
    "Handle",
    "JobState",
    "JobStatus",
    "LogFetcher",
    "ask",
    "by_word",
    "check_label",
    "keep_end",
    "keep_sent",
    "kept_end",
    "kept_sent",
    "last_line",
    "put_job",
    "put_whole",
    "require",
    "state_of",
    "state_table",
    "unix_s",
    "was_sent",
]

JobState = Literal[
    "queued",
    "running",
    "succeeded",
    "failed",
    "cancelled",
    "timed_out",
    "out_of_memory",
    "preempted",
    "node_failed",
    "never_started",
    "unknown",
]

UNKNOWN = "UNKNOWN"
"""The row of every table of states for words that it does not have."""
_SENT, _END = "sent.json", "end.json"
_OPEN = ("queued", "running", "unknown")
_MOST_LETTERS = 40
"""The shortest limit of all launchers: that of a TrainJob's and a JobSet's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """How a job is, as its launcher says."""

    state: JobState
    """`unknown`: the launcher does not know the job, or says a word that we do not."""
    exit_code: int | None = None
    """As a shell says it: 128 and the signal's number where a signal ended it. None before its end,
    or where the launcher does not tell."""
    reason: str = ""
    """The launcher's own words: why it waits, why it ended."""
    started_s: float | None = None
    """Unix time."""
    ended_s: float | None = None
    nodes: tuple[str, ...] = ()

    @staticmethod
    def of(known: Mapping[str, Any]) -> JobStatus:
        """Read what `asdict` wrote, from JSON too."""
        return JobStatus(**{**known, "nodes": tuple(known["nodes"])})

    @property
    def ended(self) -> bool:
        """Whether it will not change any more."""
        return self.state not in _OPEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """`KEY@OWNER:DIRECTORY`: a job in its launcher's words, whose it is, and its directory."""

    key: str
    owner: str
    directory: Path

    @staticmethod
    def of(text: str, form: str, *, wrong: str) -> Handle:
        """Read it, the part before the directory by its form; LauncherError where it is none."""
        found = re.fullmatch(rf"{form}:(.+)", text, flags=re.DOTALL)
        if found is None:
            raise LauncherError(wrong.format(text))
        return Handle(key=found[1], owner=found[2], directory=Path(found[3]))

    def __str__(self) -> str:
        return f"{self.key}@{self.owner}:{self.directory}"

    @property
    def folder(self) -> Path:
        """What was sent, and what is known of it."""
        return self.directory / "job"


class Executor(Protocol):
    """Starts jobs on one launcher. Handles are texts that outlive this process."""

    @property
    def name(self) -> str:
        """That of the launcher: `local`, `slurm`, ..."""

    def check(self) -> None:
        """Return where jobs can be started from here, else LauncherError in one line."""

    def slots(self, job: Job) -> int | None:
        """Return how many such jobs run here at a time; None: there is a queue for all."""

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        """Return what `submit` would send, to the letter, and by what; nothing is asked."""

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        """Start a job and return its handle.

        `directory` is the run's own: stdout.log and stderr.log end there, and what was sent stands
        in `job/`. `label` is unique to study and run; it is the job's name on the launcher.
        LauncherError where it is refused; LauncherSilent where nobody knows: `find` does.
        """

    def find(self, label: str, *, directory: Path) -> str | None:
        """Return the handle of a job that was submitted with this label and directory before,
        perhaps by a process that died meanwhile."""

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Return how each job is, in few calls; LauncherSilent where there is no answer."""

    def cancel(self, handle: str) -> None:
        """End a job; one that has ended, or is gone, stays as it is."""


def by_word(words: Mapping[JobState, str]) -> dict[str, JobState]:
    """Return what each of a platform's words means, from the words of each state."""
    return {word: state for state, told in words.items() for word in told.split()}


def state_table(words: Mapping[JobState, str]) -> Mapping[str, JobState]:
    """Return the same with the row for all words that it does not have."""
    return MappingProxyType({**by_word(words), UNKNOWN: "unknown"})


def state_of(word: str, states: Mapping[str, JobState]) -> JobState:
    """Read a platform's word; one that its table does not have is `unknown`, never an end."""
    return states.get(word, states[UNKNOWN])


def check_label(label: str) -> str:
    """Return a label that every launcher takes as a job's name; ConfigError for others."""
    if not re.fullmatch(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", label) or len(label) > _MOST_LETTERS:
        raise ConfigError(
            f"label={label}: expected up to {_MOST_LETTERS} lower-case letters, digits and dashes,"
            " the first a letter, the last no dash"
        )
    return label


def put_job(run: Path, job: Job, text: JobText) -> Path:
    """Write the script or manifest and the job's files into `job/`; return that folder."""
    folder = run / "job"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        own = [(file.name, file.text) for file in job.files]
        for name, content in [(text.file_name, text.text), *own]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8", newline="")
        for file in job.files:
            if file.executable:
                (folder / file.name).chmod(0o755)
        for name, content in [(text.file_name, text.text), *own]:
            if holds_secret(content):
                (folder / name).chmod((folder / name).stat().st_mode & 0o700)
    except OSError as error:
        raise LauncherError(
            f"{folder}: the job could not be written: {error.strerror or error}"
        ) from None
    return folder


class LogFetcher:
    """Keeps the log of a job that has no file of it; every fetch is a transfer."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._read_s: dict[str, float] = {}

    def fetch(self, handle: Handle, log: Callable[[], Answer], *, now: bool) -> None:
        """Write what the log says; the platform keeps no stderr apart."""
        last_s = self._read_s.get(str(handle))
        if not now and last_s is not None and time.monotonic() - last_s < self.every_s:
            return
        self._read_s[str(handle)] = time.monotonic()
        answer = log()
        if answer.code == 0:
            put_whole(handle.directory / "stdout.log", answer.out)
            (handle.directory / "stderr.log").touch()


def put_whole(path: Path, text: str) -> None:
    """Write a file that others see whole or not at all, or raise LauncherError."""
    try:
        replace_file(path, text.encode("utf-8"))
    except OSError as error:
        raise LauncherError(f"{path} could not be written: {error.strerror or error}") from None


def keep_sent(folder: Path, *, label: str, **known: Any) -> None:
    """Write down what a job is found again by, before it is sent; an earlier job's end goes."""
    (folder / _END).unlink(missing_ok=True)
    put_whole(folder / _SENT, json.dumps({"label": label, **known}))


def kept_sent(folder: Path, *, label: str) -> Mapping[str, Any] | None:
    """Return what was written before a job of this label was sent; None where none was to be."""
    path = folder / _SENT
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return known if known.get("label") == label else None


def was_sent(folder: Path) -> bool:
    """Whether any job was, or was about to be, sent from here."""
    return (folder / _SENT).exists()


def keep_end(folder: Path, status: JobStatus) -> None:
    """Write down how a job ended, as platforms forget it some day."""
    put_whole(folder / _END, json.dumps(asdict(status)))


def kept_end(folder: Path) -> JobStatus | None:
    """Return how a job ended, where that is written down."""
    path = folder / _END
    return JobStatus.of(json.loads(path.read_text())) if path.exists() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str


def require(launcher: str, programs: Sequence[str], *, advice: str) -> None:
    """Look for programs; LauncherError where one is not there."""
    for program in programs:
        if shutil.which(program) is None:
            raise LauncherError(f"{launcher}: {program} is not there: {advice}")


def ask(
    words: Sequence[str],
    *,
    launcher: str,
    env: Mapping[str, str],
    patience_s: float,
    out: Path | None = None,
) -> Answer:
    """Run a command; with `out` it writes its output there itself, in case this process dies."""
    try:
        with nullcontext() if out is None else out.open("wb") as file:
            done = subprocess.run(
                words,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if out is None else file,
                stderr=subprocess.PIPE,
                timeout=patience_s,
                check=False,
            )
        said = done.stdout if out is None else out.read_bytes()
        return Answer(code=done.returncode, out=_text(said), err=_text(done.stderr))
    except FileNotFoundError:
        raise LauncherError(f"{launcher}: {words[0]} is not there") from None
    except subprocess.TimeoutExpired:
        raise LauncherSilent(
            f"{launcher}: {words[0]} did not answer within {patience_s:g} s"
        ) from None
    except OSError as error:
        raise LauncherError(f"{launcher}: {words[0]} could not be run: {error}") from None


def unix_s(text: str | None) -> float | None:
    """Return a time of ISO 8601 as seconds."""
    return datetime.fromisoformat(text).timestamp() if text else None


def last_line(answer: Answer) -> str:
    """Return the line that says what went wrong."""
    lines = [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {answer.code} without a word"


def _text(content: bytes) -> str:
    return content.decode(errors="replace")
