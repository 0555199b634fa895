"""Jobs on Run:ai, DGX Cloud Lepton and SkyPilot, through their own command lines: sent, looked at,
ended.

They tell less than a scheduler: no exit code, no stderr apart, and a job that coreutils' timeout
ended reads as failed. A word that a table does not have is `unknown`, never an end.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meshwright.platforms.executor import (
    Answer,
    JobState,
    JobStatus,
    ask,
    check_label,
    last_line,
    put_job,
    put_whole,
    require,
)
from meshwright.platforms.job import Job, JobText
from meshwright.platforms.texts import job_text
from meshwright.values.errors import LauncherError, LauncherSilent

__all__ = [
    "CLOUDS",
    "Cloud",
    "CloudExecutor",
    "Seen",
]

_SENT, _END = "sent.json", "end.json"
_LOG_EVERY_S = 30.0
"""Between two fetches of a running job's log: each is a transfer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a status command says of a job."""

    word: str
    """Of the platform."""
    job_id: str | None = None
    """Where other commands need it instead of the name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cloud:
    """One command line. In words {name} is the job's name, {id} its id, {project} whose it is."""

    name: str
    program: str
    advice: str
    """How it is installed and set up."""
    source: str
    """Where its words are documented."""
    submit: tuple[str, ...] | None = None
    """None: the script of `meshwright export` calls the command itself."""
    status: tuple[str, ...]
    read: Callable[[str, str], Seen | None]
    """(what it prints, the job's name): the job, or None where it is not there."""
    log: tuple[str, ...]
    cancel: tuple[str, ...]
    states: Mapping[str, JobState]


def _read_runai(out: str, _name: str) -> Seen | None:
    """The first phase of the workload's JSON."""
    found = re.search(r'"(?:phase|currentPhase|status)"\s*:\s*"(\w+)"', out)
    return None if found is None else Seen(word=found[1])


def _read_lepton(out: str, _name: str) -> Seen | None:
    """The state of the job's JSON, behind a line of words."""
    state, job_id = (
        re.search(r'"state"\s*:\s*"(\w+)"', out),
        re.search(r'"id"\s*:\s*"([^"]+)"', out),
    )
    return (
        None if state is None else Seen(word=state[1], job_id=None if job_id is None else job_id[1])
    )


def _read_sky(out: str, name: str) -> Seen | None:
    """The newest managed job of that name in a list."""
    start = out.find("[")
    try:
        jobs: list[dict[str, Any]] = json.loads(out[start:]) if start >= 0 else []
    except ValueError:
        return None
    named = [job for job in jobs if job.get("job_name") == name]
    newest = max(named, key=lambda job: int(job.get("job_id") or 0), default=None)
    return (
        None
        if newest is None
        else Seen(word=str(newest.get("status")), job_id=str(newest.get("job_id")))
    )


_RUNAI_STATES: Mapping[str, JobState] = MappingProxyType(
    {
        **dict.fromkeys(("Creating", "Initializing", "Resuming", "Pending"), "queued"),
        **dict.fromkeys(
            ("Running", "Updating", "Degraded", "Stopping", "Terminating", "Deleting"), "running"
        ),
        "Completed": "succeeded",
        "Failed": "failed",
        "Stopped": "cancelled",
    }
)
_LEPTON_STATES: Mapping[str, JobState] = MappingProxyType(
    {
        **dict.fromkeys(("Queueing", "Awaiting", "Starting", "PendingRetry"), "queued"),
        **dict.fromkeys(
            ("Running", "Restarting", "Stopping", "Terminating", "Deleting"), "running"
        ),
        "Completed": "succeeded",
        "Failed": "failed",
        **dict.fromkeys(("Stopped", "Deleted"), "cancelled"),
    }
)
_SKY_STATES: Mapping[str, JobState] = MappingProxyType(
    {
        **dict.fromkeys(("PENDING", "SUBMITTED", "STARTING"), "queued"),
        **dict.fromkeys(("RUNNING", "RECOVERING", "CANCELLING", "WINDING_DOWN"), "running"),
        "SUCCEEDED": "succeeded",
        "CANCELLED": "cancelled",
        **dict.fromkeys(("FAILED", "FAILED_SETUP"), "failed"),
        **dict.fromkeys(("FAILED_PRECHECKS", "FAILED_NO_RESOURCE"), "never_started"),
        "FAILED_CONTROLLER": "node_failed",
    }
)

CLOUDS: Mapping[str, Cloud] = MappingProxyType(
    {
        cloud.name: cloud
        for cloud in (
            Cloud(
                name="runai",
                program="runai",
                advice="install Run:ai's command line 2 and log in by `runai login`",
                source=(
                    "docs.nvidia.com/run-ai, runai training pytorch submit, describe, logs, delete"
                ),
                status=(
                    "runai",
                    "training",
                    "pytorch",
                    "describe",
                    "{name}",
                    "{project}",
                    "-o",
                    "json",
                ),
                read=_read_runai,
                log=("runai", "training", "pytorch", "logs", "{name}", "{project}"),
                cancel=("runai", "training", "pytorch", "suspend", "{name}", "{project}"),
                states=_RUNAI_STATES,
            ),
            Cloud(
                name="lepton",
                program="lep",
                advice="pip install leptonai, and log in by `lep login`",
                source="leptonai 0.47.1, cli/job.py and cli/log.py",
                status=("lep", "job", "get", "--name", "{name}", "--include-archived"),
                read=_read_lepton,
                log=("lep", "log", "get", "--job-name", "{name}", "--without-timestamp"),
                cancel=("lep", "job", "stop", "--id", "{id}"),
                states=_LEPTON_STATES,
            ),
            Cloud(
                name="sky",
                program="sky",
                advice="pip install skypilot with your cloud, and see that `sky check` is well",
                source="skypilot 0.14.1, client/cli/command.py and jobs/state.py",
                submit=(
                    "sky",
                    "jobs",
                    "launch",
                    "--yes",
                    "--detach-run",
                    "--name",
                    "{name}",
                    "job.sky.yaml",
                ),
                status=("sky", "jobs", "queue", "--all", "--output", "json"),
                read=_read_sky,
                log=("sky", "jobs", "logs", "--no-follow", "--tail", "0", "--name", "{name}"),
                cancel=("sky", "jobs", "cancel", "--yes", "--name", "{name}"),
                states=_SKY_STATES,
            ),
        )
    }
)
"""By launcher. SkyPilot's managed jobs end their cluster with them; `sky launch` would leave it
running, and paid for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Handle:
    """`NAME@PROJECT:DIRECTORY`; without a project the command line's own is meant."""

    name: str
    project: str
    directory: Path

    @staticmethod
    def of(text: str) -> _Handle:
        found = re.fullmatch(r"([a-z0-9-]+)@([^:]*):(.+)", text, flags=re.DOTALL)
        if found is None:
            raise LauncherError(f"{text!r} is no handle of a job")
        return _Handle(name=found[1], project=found[2], directory=Path(found[3]))

    def __str__(self) -> str:
        return f"{self.name}@{self.project}:{self.directory}"

    @property
    def folder(self) -> Path:
        return self.directory / "job"


class CloudExecutor:
    """Jobs by the command line of a cloud's scheduler."""

    def __init__(self, cloud: Cloud, *, patience_s: float = 120.0) -> None:
        """Take the row; nothing is asked before it is needed."""
        self.cloud, self.patience_s = cloud, patience_s
        self._read_s: dict[str, float] = {}

    @property
    def name(self) -> str:
        """That of the launcher."""
        return self.cloud.name

    def check(self) -> None:
        """Look for the command line."""
        require(self.cloud.name, ("bash", self.cloud.program), advice=self.cloud.advice)

    def slots(self, job: Job) -> None:
        """It has a queue for as many as there are."""
        return None

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        """Return the script or task, and what sends it."""
        text = job_text(replace(job, name=check_label(label)), launcher=self.cloud.name)
        return replace(
            text, submit=shlex.join(self._submit_words(label, text, directory.absolute() / "job"))
        )

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        """Write it and send it."""
        run = directory.absolute()
        text = self.written(job, directory=run, label=label)
        folder = put_job(run, replace(job, name=label), text)
        (folder / _END).unlink(missing_ok=True)
        handle = _Handle(name=label, project=job.account or "", directory=run)
        put_whole(folder / _SENT, json.dumps({"label": label, "handle": str(handle)}))
        answer = self._ask(*self._submit_words(label, text, folder))
        if answer.code:
            raise LauncherError(
                f"{self.cloud.name}: {self.cloud.program} refuses {label}: {last_line(answer)}"
            )
        return str(handle)

    def find(self, label: str, *, directory: Path) -> str | None:
        """Ask for a job of that name, where one was to be sent."""
        sent = directory.absolute() / "job" / _SENT
        known: dict[str, str] = json.loads(sent.read_text()) if sent.exists() else {}
        if known.get("label") != label:
            return None
        return known["handle"] if self._seen(_Handle.of(known["handle"])) is not None else None

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Ask for each; logs are fetched now and then, and at the end."""
        return {text: self._status(_Handle.of(text)) for text in handles}

    def cancel(self, handle: str) -> None:
        """Tell the platform to end a job."""
        own = _Handle.of(handle)
        seen = self._seen(own)
        if seen is None or self.cloud.states.get(seen.word, "unknown") not in (
            "queued",
            "running",
            "unknown",
        ):
            return
        answer = self._ask(*self._words(self.cloud.cancel, own, seen))
        if answer.code:
            raise LauncherError(f"{self.cloud.name}: {own.name} is not ended: {last_line(answer)}")

    def _submit_words(self, label: str, text: JobText, folder: Path) -> list[str]:
        if self.cloud.submit is None:
            return ["bash", str(folder / text.file_name)]
        return [
            str(folder / word) if word == text.file_name else word.format(name=label)
            for word in self.cloud.submit
        ]

    def _status(self, handle: _Handle) -> JobStatus:
        if (handle.folder / _END).exists():
            known = json.loads((handle.folder / _END).read_text())
            return JobStatus(**{**known, "nodes": tuple(known["nodes"])})
        seen = self._seen(handle)
        if seen is None:
            return JobStatus(
                state="unknown", reason=f"{self.cloud.name} knows no job {handle.name}"
            )
        state = self.cloud.states.get(seen.word, "unknown")
        plain = state in ("running", "succeeded")
        status = JobStatus(
            state=state,
            exit_code=0 if state == "succeeded" else None,
            reason="" if plain else seen.word,
        )
        if state == "running" or status.ended:
            self._fetch_log(handle, seen, now=status.ended)
        if status.ended and handle.folder.exists():
            put_whole(handle.folder / _END, json.dumps(asdict(status)))
        return status

    def _seen(self, handle: _Handle) -> Seen | None:
        answer = self._ask(*self._words(self.cloud.status, handle, None))
        found = self.cloud.read(answer.out, handle.name)
        if (
            found is None
            and answer.code
            and "not found" not in (answer.out + answer.err).lower()
            and "no job" not in answer.out.lower()
        ):
            raise LauncherSilent(
                f"{self.cloud.name}: {shlex.join(self.cloud.status[:3])}: {last_line(answer)}"
            )
        return found

    def _fetch_log(self, handle: _Handle, seen: Seen, *, now: bool) -> None:
        last_s = self._read_s.get(str(handle))
        if not now and last_s is not None and time.monotonic() - last_s < _LOG_EVERY_S:
            return
        self._read_s[str(handle)] = time.monotonic()
        try:
            answer = self._ask(*self._words(self.cloud.log, handle, seen))
        except LauncherSilent:
            return  # the log of a job that ended well is no reason to doubt its end
        if answer.code == 0:
            put_whole(handle.directory / "stdout.log", answer.out)
            (handle.directory / "stderr.log").touch()

    def _words(self, words: Sequence[str], handle: _Handle, seen: Seen | None) -> list[str]:
        found: list[str] = []
        for word in words:
            if word == "{project}":
                found += ["--project", handle.project] if handle.project else []
            else:
                found.append(
                    word.format(
                        name=handle.name,
                        id=(seen.job_id if seen is not None else None) or handle.name,
                    )
                )
        return found

    def _ask(self, *words: str) -> Answer:
        # A wide terminal: leptonai folds what it prints, JSON too, at the width that it is told.
        return ask(
            words,
            launcher=self.cloud.name,
            env={**os.environ, "COLUMNS": "100000"},
            patience_s=self.patience_s,
        )
