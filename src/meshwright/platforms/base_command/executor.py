"""Jobs on NVIDIA Base Command Platform, through NGC CLI up to 4.19.1."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.platforms.executor import (
    UNKNOWN,
    Answer,
    JobState,
    JobStatus,
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
from meshwright.platforms.job import Job, JobText, with_defaults
from meshwright.platforms.registry import job_text
from meshwright.values.errors import LauncherError, LauncherSilent

__all__ = [
    "LISTED_DAYS",
    "STATES",
    "BaseCommandExecutor",
    "BaseCommandOptions",
    "ask_ngc",
    "json_of",
    "require_ngc",
]

STATES: Mapping[str, JobState] = MappingProxyType(
    {
        "CREATED": "queued",
        "QUEUED": "queued",
        "PENDING_STORAGE_CREATION": "queued",
        "REQUESTING_RESOURCE": "queued",
        "RESOURCE_CONSUMPTION_REQUEST_IN_PROGRESS": "queued",
        "RESOURCE_GRANTED": "queued",
        "STARTING": "queued",
        "RUNNING": "running",
        "PENDING_TERMINATION": "running",
        "FINISHED_SUCCESS": "succeeded",
        "FAILED": "failed",
        "FAILED_RUN_LIMIT_EXCEEDED": "timed_out",
        "KILLED_BY_USER": "cancelled",
        "CANCELED": "cancelled",
        "KILLED_BY_ADMIN": "preempted",
        "KILLED_BY_SYSTEM": "preempted",
        "PREEMPTED": "preempted",
        "PREEMPTED_BY_ADMIN": "preempted",
        "TASK_LOST": "node_failed",
        "RESOURCE_RELEASED": "node_failed",
        "RESOURCE_GRANT_DENIED": "never_started",
        "RESOURCE_LIMIT_EXCEEDED": "never_started",
        "INFINITY_POOL_MISSING": "never_started",
        "IM_INTERNAL_ERROR": "never_started",
        UNKNOWN: "unknown",
    }
)
"""Every status of NGC CLI 4.19.1 (its package ngcsdk lists them); any other word reads as
UNKNOWN."""

LAST_CLI = (4, 19, 1)
LISTED_DAYS = 30
"""How far back jobs are listed; NGC CLI lists seven days unless told."""
_NGC = "install NGC CLI 4.19.1 or earlier and set it up by `ngc config set`"
_SAID = "ngc.out"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Handle:
    """`NUMBER@ORGANIZATION:DIRECTORY`; without an organization NGC CLI's own is meant."""

    number: str
    organization: str
    directory: Path

    @staticmethod
    def of(text: str) -> _Handle:
        found = re.fullmatch(r"(\d+)@([^:]*):(.+)", text, flags=re.DOTALL)
        if found is None:
            raise LauncherError(f"bcp: {text!r} is no handle of a job on Base Command")
        return _Handle(number=found[1], organization=found[2], directory=Path(found[3]))

    def __str__(self) -> str:
        return f"{self.number}@{self.organization}:{self.directory}"

    @property
    def folder(self) -> Path:
        return self.directory / "job"


def require_ngc(*, patience_s: float) -> None:
    """Look for NGC CLI, and see that it still has `base-command`; LauncherError where not."""
    require("bcp", ("bash", "ngc"), advice=_NGC)
    said = ask_ngc(("ngc", "--version"), patience_s=patience_s)
    version = re.search(r"(\d+)\.(\d+)\.(\d+)", said.out + said.err)
    if version and tuple(map(int, version.groups())) > LAST_CLI:
        raise LauncherError(f"bcp: NGC CLI {version[0]} has no base-command any more: {_NGC}")


def ask_ngc(words: Sequence[str], *, patience_s: float, out: Path | None = None) -> Answer:
    """Run a command of NGC CLI."""
    return ask(words, launcher="bcp", env=os.environ, patience_s=patience_s, out=out)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseCommandOptions:
    """Base Command; what a job says itself goes before these."""

    organization: str | None = None
    ace: str | None = None
    instance: str | None = None
    image: str | None = None
    time_limit_s: int | None = None
    words: tuple[str, ...] = ()
    """More options of `ngc base-command job run`: `--preempt RUNONCE`."""
    log_every_s: float = 30.0
    """Time between two fetches of a running job's log."""
    patience_s: float = 120.0
    """How long a command of NGC CLI may take."""


class BaseCommandExecutor:
    """`ngc base-command job run`, list, info, kill and log. Base Command tells no exit codes, and
    keeps no stderr apart."""

    name = "bcp"

    def __init__(self, options: BaseCommandOptions | None = None) -> None:
        """Take the options; nothing is asked before it is needed."""
        self.options = options or BaseCommandOptions()
        self._read_s: dict[str, float] = {}

    def check(self) -> None:
        """Look for NGC CLI, see that it still has `base-command`, and list jobs."""
        require_ngc(patience_s=self.options.patience_s)
        self._list(self.options.organization or "")

    def slots(self, job: Job) -> None:
        """Base Command has a queue for as many as there are."""
        return None

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        """Return the script that calls ngc."""
        return job_text(self._full(job, label), launcher="bcp")

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        """Write `job/job.sh` and run it."""
        run, full = directory.absolute(), self._full(job, label)
        folder = put_job(run, full, self.written(job, directory=run, label=label))
        (folder / _SAID).unlink(missing_ok=True)
        keep_sent(folder, label=label, organization=full.account or "")
        answer = self._ask("bash", str(folder / "job.sh"), out=folder / _SAID)
        number = _number(answer.out)
        if number is None:
            (folder / _SAID).unlink(missing_ok=True)
            raise LauncherError(f"bcp: ngc refuses {label}: {last_line(answer)}")
        return str(_Handle(number=number, organization=full.account or "", directory=run))

    def find(self, label: str, *, directory: Path) -> str | None:
        """Read what ngc said; where it died too, look for a job of that name."""
        folder = directory.absolute() / "job"
        sent = kept_sent(folder, label=label)
        if sent is None:
            return None
        number = _number((folder / _SAID).read_text()) if (folder / _SAID).exists() else None
        if number is None:
            named = [
                int(job["id"])
                for job in self._list(sent["organization"])
                if job.get("jobDefinition", {}).get("name") == label
            ]
            number = str(max(named)) if named else None
        return (
            None
            if number is None
            else str(
                _Handle(
                    number=number, organization=sent["organization"], directory=directory.absolute()
                )
            )
        )

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """List the jobs of each organization; fetch the logs of those that run, now and then, and
        of those that have ended."""
        own = {text: _Handle.of(text) for text in handles}
        found = {text: end for text, handle in own.items() if (end := kept_end(handle.folder))}
        for organization in sorted(
            {handle.organization for text, handle in own.items() if text not in found}
        ):
            jobs = {str(job["id"]): job for job in self._list(organization)}
            for text, handle in own.items():
                if text not in found and handle.organization == organization:
                    found[text] = self._status(handle, jobs.get(handle.number))
        return {text: found[text] for text in handles}

    def cancel(self, handle: str) -> None:
        """Tell ngc to kill the job, a preempted one too, which waits to be resumed; it ends after
        this call."""
        own = _Handle.of(handle)
        if self.poll([handle])[handle].state not in ("queued", "running", "preempted"):
            return
        answer = self._ask("ngc", "base-command", "job", "kill", own.number, *_of(own.organization))
        if answer.code and self.poll([handle])[handle].state in ("queued", "running"):
            raise LauncherError(f"bcp: job {own.number} is not killed: {last_line(answer)}")

    def _full(self, job: Job, label: str) -> Job:
        own = self.options
        named = replace(
            job, name=check_label(label), words=(*job.words, *own.words, "--format_type", "json")
        )
        return with_defaults(
            named,
            account=own.organization,
            partition=own.ace,
            instance=own.instance,
            image=own.image,
            time_limit_s=own.time_limit_s,
        )

    def _status(self, handle: _Handle, job: Mapping[str, Any] | None) -> JobStatus:
        job = job or self._info(handle)
        if job is None:
            return JobStatus(state="unknown", reason=f"Base Command knows no job {handle.number}")
        status = _status_of(job.get("jobStatus") or {})
        if status.state == "running" or (status.ended and status.started_s is not None):
            self._fetch_log(handle, now=status.ended)
        if status.ended and handle.folder.exists():
            keep_end(handle.folder, status)
        return status

    def _fetch_log(self, handle: _Handle, *, now: bool) -> None:
        """Write the log of the first node, to which bcprun brings all output; every fetch is a
        transfer, hence not at every poll."""
        last_s = self._read_s.get(str(handle))
        if not now and last_s is not None and time.monotonic() - last_s < self.options.log_every_s:
            return
        self._read_s[str(handle)] = time.monotonic()
        answer = self._ask(
            "ngc", "base-command", "job", "log", handle.number, *_of(handle.organization)
        )
        if answer.code == 0:
            put_whole(handle.directory / "stdout.log", answer.out)
            (handle.directory / "stderr.log").touch()

    def _list(self, organization: str) -> list[Mapping[str, Any]]:
        answer = self._ask(
            "ngc",
            "base-command",
            "job",
            "list",
            "--duration",
            f"{LISTED_DAYS}D",
            "--format_type",
            "json",
            *_of(organization),
        )
        found = json_of(answer.out)
        if answer.code or not isinstance(found, list):
            raise LauncherSilent(f"bcp: ngc base-command job list: {last_line(answer)}")
        return found

    def _info(self, handle: _Handle) -> Mapping[str, Any] | None:
        """An older job than what is listed."""
        words = ("base-command", "job", "info", handle.number, "--format_type", "json")
        found = json_of(self._ask("ngc", *words, *_of(handle.organization)).out)
        return found.get("job", found) if isinstance(found, dict) and found else None

    def _ask(self, *words: str, out: Path | None = None) -> Answer:
        return ask_ngc(words, patience_s=self.options.patience_s, out=out)


def _status_of(told: Mapping[str, Any]) -> JobStatus:
    """Read `jobStatus`; the exit code is not in it."""
    word = str(told.get("status", "UNKNOWN"))
    state = state_of(word, STATES)
    details = str(told.get("statusDetails") or "")
    plain = state in ("running", "succeeded") or word == "QUEUED"
    reason = details if plain else f"{word}: {details}" if details else word
    nodes = tuple(
        name
        for node in told.get("selectedNodes") or ()
        if (name := node.get("name") or node.get("ipAddress"))
    )
    return JobStatus(
        state=state,
        exit_code=0 if state == "succeeded" else None,
        reason=reason,
        started_s=None if state == "queued" else _unix(told.get("startedAt")),
        ended_s=(
            _unix(told.get("endedAt")) if state not in ("queued", "running", "unknown") else None
        ),
        nodes=nodes,
    )


def _of(organization: str) -> tuple[str, ...]:
    return ("--org", organization) if organization else ()


def _number(text: str) -> str | None:
    """Return the number in ngc's answer to `run`: `{"job": {"id": ...}}` in version 4, `{"id":
    ...}` before."""
    found = json_of(text)
    job = found.get("job", found) if isinstance(found, dict) else {}
    return str(job["id"]) if str(job.get("id", "")).isdecimal() else None


def json_of(text: str) -> Any:
    """Return the JSON in what ngc prints, behind notices about newer versions; None where there is
    none."""
    start = re.search(r"^[\[{]", text, flags=re.MULTILINE)
    try:
        return json.loads(text[start.start() :]) if start else None
    except ValueError:
        return None


def _unix(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
