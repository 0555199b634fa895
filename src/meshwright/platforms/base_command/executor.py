"""Jobs on NVIDIA Base Command Platform, through NGC CLI up to 4.19.1."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.platforms.executor import (
    Answer,
    Handle,
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
    require,
    state_of,
    state_table,
    unix_s,
)
from meshwright.platforms.job import Job, JobText, with_defaults
from meshwright.platforms.registry import job_text
from meshwright.values.amounts import check_amounts
from meshwright.values.errors import LauncherError, LauncherSilent
from meshwright.values.lines import check_lines

__all__ = [
    "JSON",
    "LIST_JOBS",
    "STATES",
    "BaseCommandExecutor",
    "BaseCommandOptions",
    "ask_ngc",
    "json_of",
    "require_ngc",
]

STATES = state_table(
    {
        "queued": "CREATED QUEUED PENDING_STORAGE_CREATION REQUESTING_RESOURCE"
        " RESOURCE_CONSUMPTION_REQUEST_IN_PROGRESS RESOURCE_GRANTED STARTING",
        "running": "RUNNING PENDING_TERMINATION",
        "succeeded": "FINISHED_SUCCESS",
        "failed": "FAILED",
        "timed_out": "FAILED_RUN_LIMIT_EXCEEDED",
        "cancelled": "KILLED_BY_USER CANCELED",
        "preempted": "KILLED_BY_ADMIN KILLED_BY_SYSTEM PREEMPTED PREEMPTED_BY_ADMIN",
        "node_failed": "TASK_LOST RESOURCE_RELEASED",
        "never_started": "RESOURCE_GRANT_DENIED RESOURCE_LIMIT_EXCEEDED INFINITY_POOL_MISSING"
        " IM_INTERNAL_ERROR",
    }
)
"""Every status of NGC CLI 4.19.1, as its package ngcsdk lists them."""

LAST_CLI = (4, 19, 1)
JSON = ("--format_type", "json")
LIST_JOBS = ("ngc", "base-command", "job", "list", "--duration", "30D")
"""How far back jobs are listed; NGC CLI lists seven days unless told."""
_NGC = "install NGC CLI 4.19.1 or earlier and set it up by `ngc config set`"
_SAID = "ngc.out"


def _handle(text: str) -> Handle:
    """`NUMBER@ORGANIZATION:DIRECTORY`; without an organization NGC CLI's own is meant."""
    wrong = "bcp: {!r} is no handle of a job on Base Command"
    return Handle.of(text, r"(\d+)@([^:]*)", wrong=wrong)


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

    def __post_init__(self) -> None:
        check_lines(self)
        check_amounts(self, ["time_limit_s"], least=1)
        check_amounts(self, ["log_every_s", "patience_s"], least=0)


class BaseCommandExecutor:
    """`ngc base-command job`. It tells no exit codes, and keeps no stderr apart."""

    name = "bcp"

    def __init__(self, options: BaseCommandOptions | None = None) -> None:
        self.options = options or BaseCommandOptions()
        self._log = LogFetcher(self.options.log_every_s)

    def check(self) -> None:
        """Look for NGC CLI, see that it still has `base-command`, and list jobs."""
        require_ngc(patience_s=self.options.patience_s)
        self._list(self.options.organization or "")

    def slots(self, job: Job) -> None:
        return None

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        return job_text(self._full(job, label), launcher="bcp")

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        run, full = directory.absolute(), self._full(job, label)
        folder = put_job(run, full, self.written(job, directory=run, label=label))
        (folder / _SAID).unlink(missing_ok=True)
        keep_sent(folder, label=label, organization=full.account or "")
        answer = self._ask("bash", str(folder / "job.sh"), out=folder / _SAID)
        number = _number(answer.out)
        if number is None:
            (folder / _SAID).unlink(missing_ok=True)
            raise LauncherError(f"bcp: ngc refuses {label}: {last_line(answer)}")
        return str(Handle(key=number, owner=full.account or "", directory=run))

    def find(self, label: str, *, directory: Path) -> str | None:
        """Read what ngc said; where it died too, look for a job of that name."""
        folder = directory.absolute() / "job"
        sent = kept_sent(folder, label=label)
        if sent is None:
            return None
        number = _number((folder / _SAID).read_text()) if (folder / _SAID).exists() else None
        if number is None:
            listed = self._list(sent["organization"])
            named = [job for job in listed if job.get("jobDefinition", {}).get("name") == label]
            number = str(max(int(job["id"]) for job in named)) if named else None
        if number is None:
            return None
        return str(Handle(key=number, owner=sent["organization"], directory=directory.absolute()))

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """List the jobs of each organization; fetch logs now and then, and at the end."""
        own = {text: _handle(text) for text in handles}
        found = {text: end for text, handle in own.items() if (end := kept_end(handle.folder))}
        open_of = {handle.owner for text, handle in own.items() if text not in found}
        for organization in sorted(open_of):
            jobs = {str(job["id"]): job for job in self._list(organization)}
            for text, handle in own.items():
                if text not in found and handle.owner == organization:
                    found[text] = self._status(handle, jobs.get(handle.key))
        return {text: found[text] for text in handles}

    def cancel(self, handle: str) -> None:
        """Kill a job, a preempted one too, which waits to be resumed; it ends after this call."""
        own = _handle(handle)
        if self.poll([handle])[handle].state not in ("queued", "running", "preempted"):
            return
        answer = self._ask("ngc", "base-command", "job", "kill", own.key, *_of(own.owner))
        if answer.code and self.poll([handle])[handle].state in ("queued", "running"):
            raise LauncherError(f"bcp: job {own.key} is not killed: {last_line(answer)}")

    def _full(self, job: Job, label: str) -> Job:
        own = self.options
        named = replace(job, name=check_label(label), words=(*job.words, *own.words, *JSON))
        return with_defaults(named, own, account=own.organization, partition=own.ace)

    def _status(self, handle: Handle, job: Mapping[str, Any] | None) -> JobStatus:
        job = job or self._info(handle)
        if job is None:
            return JobStatus(state="unknown", reason=f"Base Command knows no job {handle.key}")
        status = _status_of(job.get("jobStatus") or {})
        if status.state == "running" or (status.ended and status.started_s is not None):
            # Of the first node, to which bcprun brings all output.
            words = ("ngc", "base-command", "job", "log", handle.key, *_of(handle.owner))
            self._log.fetch(handle, lambda: self._ask(*words), now=status.ended)
        if status.ended and handle.folder.exists():
            keep_end(handle.folder, status)
        return status

    def _list(self, organization: str) -> list[Mapping[str, Any]]:
        answer = self._ask(*LIST_JOBS, *JSON, *_of(organization))
        found = json_of(answer.out)
        if answer.code or not isinstance(found, list):
            raise LauncherSilent(f"bcp: ngc base-command job list: {last_line(answer)}")
        return found

    def _info(self, handle: Handle) -> Mapping[str, Any] | None:
        """An older job than what is listed."""
        words = ("ngc", "base-command", "job", "info", handle.key, *JSON)
        found = json_of(self._ask(*words, *_of(handle.owner)).out)
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
    selected = told.get("selectedNodes") or ()
    names = [node.get("name") or node.get("ipAddress") for node in selected]
    ended = state not in ("queued", "running", "unknown")
    return JobStatus(
        state=state,
        exit_code=0 if state == "succeeded" else None,
        reason=reason,
        started_s=None if state == "queued" else unix_s(told.get("startedAt")),
        ended_s=unix_s(told.get("endedAt")) if ended else None,
        nodes=tuple(name for name in names if name),
    )


def _of(organization: str) -> tuple[str, ...]:
    return ("--org", organization) if organization else ()


def _number(text: str) -> str | None:
    """Read `{"job": {"id": ...}}` of version 4, or `{"id": ...}` of those before."""
    found = json_of(text)
    job = found.get("job", found) if isinstance(found, dict) else {}
    return str(job["id"]) if str(job.get("id", "")).isdecimal() else None


def json_of(text: str) -> Any:
    """Return the JSON behind notices about newer versions; None where there is none."""
    start = re.search(r"^[\[{]", text, flags=re.MULTILINE)
    try:
        return json.loads(text[start.start() :]) if start else None
    except ValueError:
        return None
