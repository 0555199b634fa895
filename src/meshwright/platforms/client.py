"""Jobs through a platform's own command line: sent, looked at, ended.

Such a client tells less than a scheduler: no exit code, no stderr apart, and a job that coreutils'
timeout ended reads as failed. A word that its table does not have is `unknown`, never an end.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from meshwright.platforms.contract import Platform
from meshwright.platforms.executor import (
    Answer,
    Handle,
    JobState,
    JobStatus,
    LogFetcher,
    ask,
    check_label,
    keep_end,
    keep_sent,
    kept_end,
    kept_sent,
    last_line,
    put_job,
    put_whole,
    require,
    state_of,
)
from meshwright.platforms.job import Job, JobText
from meshwright.platforms.registry import job_text
from meshwright.software.folders import TimeForm
from meshwright.values.errors import LauncherError, LauncherSilent

__all__ = [
    "CAVEATS",
    "LIMIT",
    "Client",
    "ClientExecutor",
    "ClientOptions",
    "Seen",
    "client_platform",
]

LIMIT = "timeout {time}"
"""Where the limit on time stands, as no such platform has one of its own."""
CAVEATS = (
    "the platform has no limit on time: coreutils' timeout around the program ends it, in every"
    " node by its own clock",
    "it tells no exit code, keeps no stderr apart, and a job that its limit ended reads as failed",
)
_RAN = "running.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientOptions:
    """A platform's command line."""

    log_every_s: float = 30.0
    """Time between two fetches of a running job's log, each of which is a transfer."""
    patience_s: float = 120.0
    """How long a command may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a status command says of a job."""

    word: str
    """Of the platform."""
    job_id: str | None = None
    """Where other commands need it instead of the name."""
    pod: str | None = None
    """Whose log is read, where logs are those of a pod; None: it has none yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """One command line. In words {name} is the job's name, {id} its id, {pod} its pod, {project}
    whose it is."""

    name: str
    program: str
    advice: str
    """How it is installed and set up."""
    source: str
    """Where its words are documented."""
    submit: tuple[str, ...] | None = None
    """None: the script of `meshwright export` calls the command itself."""
    secret: str | None = None
    """The option that takes a variable from the environment of who submits, before the file."""
    status: tuple[str, ...]
    read: Callable[[str, str], Seen | None]
    """(what it prints, the job's name): the job, or None where it is not there."""
    log: tuple[str, ...]
    cancel: tuple[str, ...]
    states: Mapping[str, JobState]
    project: str = "--project"
    """The option before whose it is."""
    log_text: Callable[[str], str] = str
    """The log, in what that command prints."""


def _handle(text: str) -> Handle:
    """`NAME@PROJECT:DIRECTORY`; without a project the command line's own is meant."""
    return Handle.of(text, r"([a-z0-9-]+)@([^:]*)", wrong="{!r} is no handle of a job")


class ClientExecutor:
    """Jobs by the command line of a platform."""

    def __init__(self, client: Client, options: ClientOptions | None = None) -> None:
        self.client, self.options = client, options or ClientOptions()
        self._log = LogFetcher(self.options.log_every_s)

    @property
    def name(self) -> str:
        return self.client.name

    def check(self) -> None:
        require(self.client.name, ("bash", self.client.program), advice=self.client.advice)

    def slots(self, job: Job) -> None:
        return None

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        """Return the script or task, and what sends it."""
        text = job_text(replace(job, name=check_label(label)), launcher=self.client.name)
        words = self._submit_words(label, text, directory.absolute() / "job", job.secrets)
        return replace(text, submit=shlex.join(words))

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        run = directory.absolute()
        text = self.written(job, directory=run, label=label)
        folder = put_job(run, replace(job, name=label), text)
        (folder / _RAN).unlink(missing_ok=True)
        handle = Handle(key=label, owner=job.account or "", directory=run)
        keep_sent(folder, label=label, handle=str(handle))
        answer = self._ask(*self._submit_words(label, text, folder, job.secrets))
        if answer.code:
            own = self.client
            raise LauncherError(f"{own.name}: {own.program} refuses {label}: {last_line(answer)}")
        return str(handle)

    def find(self, label: str, *, directory: Path) -> str | None:
        """Ask for a job of that name, where one was to be sent."""
        known = kept_sent(directory.absolute() / "job", label=label)
        if known is None:
            return None
        return known["handle"] if self._seen(_handle(known["handle"])) is not None else None

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Ask for each; logs are fetched now and then, and at the end."""
        return {text: self._status(_handle(text)) for text in handles}

    def cancel(self, handle: str) -> None:
        own = _handle(handle)
        seen = self._seen(own)
        if seen is None or JobStatus(state=state_of(seen.word, self.client.states)).ended:
            return
        answer = self._ask(*self._words(self.client.cancel, own, seen))
        if answer.code:
            raise LauncherError(f"{self.client.name}: {own.key} is not ended: {last_line(answer)}")

    def _submit_words(
        self, label: str, text: JobText, folder: Path, secrets: Sequence[str]
    ) -> list[str]:
        if self.client.submit is None:
            return ["bash", str(folder / text.file_name)]
        *before, last = (
            str(folder / word) if word == text.file_name else word.format(name=label)
            for word in self.client.submit
        )
        option = self.client.secret
        return [*before, *(word for name in secrets if option for word in (option, name)), last]

    def _status(self, handle: Handle) -> JobStatus:
        end = kept_end(handle.folder)
        if end is not None:
            return end
        seen = self._seen(handle)
        if seen is None:
            reason = f"{self.client.name} knows no job {handle.key}"
            return JobStatus(state="unknown", reason=reason)
        state = state_of(seen.word, self.client.states)
        plain = state in ("running", "succeeded")
        status = JobStatus(
            state=state,
            exit_code=0 if state == "succeeded" else None,
            reason="" if plain else seen.word,
            started_s=_seen_running_s(handle.folder, state),
        )
        if status.ended:
            status = replace(status, ended_s=time.time())
        if state == "running" or status.ended:
            # The log of a job that ended well is no reason to doubt its end.
            with suppress(LauncherSilent):
                self._log.fetch(handle, lambda: self._said(handle, seen), now=status.ended)
        if status.ended and handle.folder.exists():
            keep_end(handle.folder, status)
        return status

    def _said(self, handle: Handle, seen: Seen) -> Answer:
        """Ask for the job's log; one that has no pod has said nothing."""
        if seen.pod is None and any("{pod}" in word for word in self.client.log):
            return Answer(code=1, out="", err="no pod")
        answer = self._ask(*self._words(self.client.log, handle, seen))
        return replace(answer, out=self.client.log_text(answer.out)) if not answer.code else answer

    def _seen(self, handle: Handle) -> Seen | None:
        answer = self._ask(*self._words(self.client.status, handle, None))
        found = self.client.read(answer.out, handle.key)
        said = answer.out + answer.err
        absent = re.search(r"not found|no job", said, flags=re.IGNORECASE)
        if found is None and answer.code and not absent:
            asked = shlex.join(self.client.status[:3])
            raise LauncherSilent(f"{self.client.name}: {asked}: {last_line(answer)}")
        return found

    def _words(self, words: Sequence[str], handle: Handle, seen: Seen | None) -> list[str]:
        found: list[str] = []
        for word in words:
            if word == "{project}":
                found += [self.client.project, handle.owner] if handle.owner else []
            else:
                job_id, pod = (seen.job_id, seen.pod) if seen is not None else (None, None)
                found.append(word.format(name=handle.key, id=job_id or handle.key, pod=pod))
        return found

    def _ask(self, *words: str) -> Answer:
        # A wide terminal: leptonai folds what it prints, JSON too, at the width that it is told.
        env, patience_s = {**os.environ, "COLUMNS": "100000"}, self.options.patience_s
        return ask(words, launcher=self.client.name, env=env, patience_s=patience_s)


def _seen_running_s(folder: Path, state: JobState) -> float | None:
    """When a job was first seen running, which is up to a poll late: no command tells its start."""
    path = folder / _RAN
    if state == "running" and folder.exists() and not path.exists():
        put_whole(path, json.dumps({"seen_s": time.time()}))
    return float(json.loads(path.read_text())["seen_s"]) if path.exists() else None


def client_platform(
    client: Client,
    *,
    title: str,
    place: int,
    write: Callable[[Job], JobText],
    copies: bool = False,
    limit: str = LIMIT,
    form: TimeForm = "seconds",
    caveats: tuple[str, ...] = CAVEATS,
) -> Platform:
    """Return the record of a platform whose jobs its own command line starts."""
    return Platform(
        name=client.name,
        title=title,
        place=place,
        write=write,
        without_gpus=True,
        needs=client.advice,
        start=partial(ClientExecutor, client),
        options=ClientOptions,
        states=client.states,
        limit=limit,
        form=form,
        copies_paths=copies,
        caveats=caveats,
    )
