"""Slurm's words for how a job is, read through one table."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.platforms.executor import (
    Answer,
    JobStatus,
    ask,
    check_label,
    keep_sent,
    kept_sent,
    last_line,
    put_job,
    require,
    state_of,
    state_table,
)
from meshwright.platforms.job import Job, JobText, with_defaults
from meshwright.platforms.registry import job_text
from meshwright.platforms.slurm.script import array_script
from meshwright.values.amounts import check_amounts
from meshwright.values.errors import ConfigError, LauncherError, LauncherSilent
from meshwright.values.lines import check_lines

__all__ = [
    "STATES",
    "ArrayRun",
    "SlurmExecutor",
    "SlurmOptions",
    "status_of_sacct",
    "status_of_squeue",
]

STATES = state_table(
    {
        "queued": "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT"
        " EXPEDITING POWER_UP_NODE",
        "running": "RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED UPDATE_DB",
        "succeeded": "COMPLETED",
        "failed": "FAILED",
        "cancelled": "CANCELLED REVOKED",
        "timed_out": "TIMEOUT DEADLINE",
        "out_of_memory": "OUT_OF_MEMORY",
        "preempted": "PREEMPTED",
        "node_failed": "NODE_FAIL BOOT_FAIL",
        "never_started": "LAUNCH_FAILED RECONFIG_FAIL",
    }
)
"""Every state of squeue's and sacct's manuals, Slurm 22.05 to 25.05."""

SQUEUE_FIELDS = ("JobArrayID", "State", "Reason", "StartTime", "EndTime", "NodeList", "exit_code")
SACCT_FIELDS = ("JobID", "State", "Reason", "Start", "End", "NodeList", "ExitCode")
_NEVER = ("DependencyNeverSatisfied",)
"""Reasons of a job that Slurm took out of the queue itself."""


def status_of_squeue(fields: Sequence[str], nodes: tuple[str, ...]) -> JobStatus:
    """Read SQUEUE_FIELDS; times are seconds, the exit code is a wait status."""
    _, state, reason, start, end, _, raw = fields
    return _status(state, reason, (start, end), nodes, _shell_code(raw))


def status_of_sacct(fields: Sequence[str], nodes: tuple[str, ...]) -> JobStatus:
    """Read SACCT_FIELDS; `CANCELLED by 1000` names who, and the exit code is CODE:SIGNAL."""
    _, state, reason, start, end, _, raw = fields
    word, _, by = state.partition(" ")
    return _status(word, state if by else reason, (start, end), nodes, _shell_code(raw))


def _status(
    word: str, reason: str, times: tuple[str, str], nodes: tuple[str, ...], code: int
) -> JobStatus:
    """Where a job has no nodes it has not run: a cancelled one gets a start too."""
    state = state_of(word, STATES)
    ended, ran = state not in ("queued", "running", "unknown"), bool(nodes)
    if ended and not ran and (reason in _NEVER or word == "DEADLINE"):
        state = "never_started"
    words = [] if word in ("PENDING", "RUNNING", "COMPLETED") else [word]
    words += [] if reason in ("", "None", *words) else [reason]
    says_both = len(words) == 2 and words[1].startswith(words[0])
    told = state in ("succeeded", "failed", "out_of_memory") or (ended and code > 0)
    return JobStatus(
        state=state,
        exit_code=code if told else None,
        reason=reason if says_both else ": ".join(words),
        started_s=_seconds(times[0]) if ran and state != "queued" else None,
        ended_s=_seconds(times[1]) if ended else None,
        nodes=nodes,
    )


def _shell_code(text: str) -> int:
    """Read CODE:SIGNAL, or a wait status, as a shell says it: 128 and the signal's number."""
    if ":" in text:
        code, _, number = text.partition(":")
        status = int(code) << 8 | int(number)
    else:
        status = int(text) if text.isdecimal() else 0
    return 128 + (status & 127) if status & 127 else status >> 8


def _seconds(text: str) -> float | None:
    """Read SLURM_TIME_FORMAT=%s; a time that is not known is a word."""
    return float(text) if text.isdecimal() and int(text) else None


_COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
_ADVICE = "start from a login node of the cluster, or load Slurm's module"
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
_SILENT = (
    *("Unable to contact", "Socket timed out", "Connection refused", "standby mode"),
    *("temporarily unable", "Zero Bytes were transmitted"),
)
"""Slurm's words where the controller, not the request, is in trouble."""
_STAMP = "sbatch.out"
"""What sbatch said, written by itself: it is there even if this process dies."""
_FORGETS = (
    "; there is no accounting here, and the controller forgets jobs some minutes after their end"
)
_DAYS = 90
"""How far back accounting is asked for a label."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayRun:
    """One task of an array."""

    job: Job
    directory: Path
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmOptions:
    """Slurm; what a job says itself goes before these."""

    account: str | None = None
    partition: str | None = None
    time_limit_s: int | None = None
    image: str | None = None
    words: tuple[str, ...] = ()
    """More options of sbatch, behind the job's own: `--qos=high`."""
    array_at_once: int | None = None
    """How many tasks of an array run at a time; None: as many as Slurm starts."""
    patience_s: float = 60.0
    """How long a command of Slurm may take."""

    def __post_init__(self) -> None:
        check_lines(self)
        check_amounts(self, ["time_limit_s", "array_at_once"], least=1)
        check_amounts(self, ["patience_s"], least=0)


class SlurmExecutor:
    """sbatch, squeue, sacct where there is accounting, scontrol and scancel. The run's directory
    must be on a file system of all nodes."""

    name = "slurm"

    def __init__(self, options: SlurmOptions | None = None) -> None:
        self.options = options or SlurmOptions()
        self._accounting = True

    def check(self) -> None:
        """Look for the commands and the controller."""
        require("slurm", _COMMANDS, advice=_ADVICE)
        answer = self._ask("scontrol", "ping")
        if " is UP" not in answer.out:
            raise LauncherSilent(f"slurm: its controller does not answer: {last_line(answer)}")

    def slots(self, job: Job) -> None:
        return None

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        """Return the script and the whole command of sbatch."""
        text = job_text(self._full(job, label), launcher="slurm")
        return replace(text, submit=shlex.join([*_SBATCH, *_words(directory.absolute(), label)]))

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        """Write `job/job.sbatch` and hand it to sbatch."""
        run = directory.absolute()
        folder = put_job(run, self._full(job, label), self.written(job, directory=run, label=label))
        _keep(folder, label, array=None, task=None)
        return self._sbatch(_words(run, label), folder, label)

    def submit_array(
        self, runs: Sequence[ArrayRun], *, directory: Path, label: str
    ) -> tuple[str, ...]:
        """Hand several jobs of the same size to sbatch at once; a handle for each, in order.
        `directory` holds the array's own script."""
        full = [self._full(run.job, run.label) for run in runs]
        folder = directory.absolute() / "job"
        tasks = []
        for task, (run, job) in enumerate(zip(runs, full, strict=True)):
            place = put_job(run.directory.absolute(), job, job_text(job, launcher="slurm"))
            _keep(place, run.label, array=str(folder), task=task)
            tasks.append(str(place))
        text = array_script(full, folders=tasks, at_once=self.options.array_at_once)
        put_job(directory.absolute(), replace(full[0], files=()), text)
        name = f"--job-name={check_label(label)}"
        words = [name, f"--chdir={folder}", str(folder / text.file_name)]
        number = self._sbatch(words, folder, label)
        return tuple(f"{number}_{task}" for task in range(len(tasks)))

    def find(self, label: str, *, directory: Path) -> str | None:
        """Read what sbatch said; where it died too, ask Slurm for a job of that name."""
        folder = directory.absolute() / "job"
        sent = kept_sent(folder, label=label)
        if sent is None:
            return None
        stamp = Path(sent["array"] or folder) / _STAMP
        number = _number(stamp.read_text()) if stamp.exists() else None
        number = number or (None if sent["array"] else self._by_name(label))
        if number is None or sent["task"] is None:
            return number
        return f"{number}_{sent['task']}"

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Ask squeue for all, and sacct for those that squeue has forgotten."""
        for handle in handles:
            _check_handle(handle)
        found = self._squeue(handles)
        missing = [handle for handle in handles if handle not in found]
        found |= self._sacct(missing) if missing else {}
        return {handle: found.get(handle) or self._forgotten(handle) for handle in handles}

    def cancel(self, handle: str) -> None:
        """Tell scancel; Slurm ends the job's processes after this call."""
        answer = self._ask("scancel", "--quiet", _check_handle(handle))
        if answer.code and "Invalid job id" not in answer.err:
            raise LauncherError(f"slurm: scancel {handle}: {last_line(answer)}")

    def requeue(self, handle: str) -> None:
        """Queue a running or ended job anew, under the same handle and with new logs."""
        answer = self._ask("scontrol", "requeue", _check_handle(handle))
        if answer.code:
            why = last_line(answer)
            raise LauncherError(f"slurm: {handle} is not put back into the queue: {why}")

    def _full(self, job: Job, label: str) -> Job:
        if job.log_dir:
            raise ConfigError(
                f"log_dir={job.log_dir}: the output of a run goes to its own directory; leave"
                " log_dir out"
            )
        own = self.options
        named = replace(job, name=check_label(label), words=(*job.words, *own.words))
        return with_defaults(named, own)

    def _sbatch(self, words: Sequence[str], folder: Path, label: str) -> str:
        stamp = folder / _STAMP
        answer = self._ask(*_SBATCH, *words, out=stamp)
        number = _number(answer.out)
        if number is None:
            stamp.unlink(missing_ok=True)
            raise LauncherError(f"slurm: sbatch refuses {label}: {last_line(answer)}")
        return number

    def _squeue(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        if not handles:
            return {}
        columns = ",".join(f"{name}:|" for name in SQUEUE_FIELDS)
        jobs = f"--jobs={','.join(handles)}"
        answer = self._ask("squeue", *_SQUEUE, "--array", jobs, f"--Format={columns}")
        if answer.code and "Invalid job id" not in answer.err:
            raise LauncherSilent(f"slurm: squeue: {last_line(answer)}")
        rows = _rows(answer, SQUEUE_FIELDS)
        nodes = self._names({row[5] for row in rows})
        return {row[0]: status_of_squeue(row, nodes[row[5]]) for row in rows if row[0] in handles}

    def _sacct(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        if not self._accounting:
            return {}
        try:
            jobs = f"--jobs={','.join(handles)}"
            answer = self._ask("sacct", *_SACCT, f"--format={','.join(SACCT_FIELDS)}", jobs)
        except LauncherSilent:
            raise
        except LauncherError:
            answer = Answer(code=1, out="", err="accounting storage is disabled")
        if answer.code and "accounting storage is disabled" in answer.err:
            self._accounting = False
            return {}
        if answer.code:
            raise LauncherSilent(f"slurm: sacct: {last_line(answer)}")
        rows = _rows(answer, SACCT_FIELDS)
        nodes = self._names({row[5] for row in rows})
        return {row[0]: status_of_sacct(row, nodes[row[5]]) for row in rows if row[0] in handles}

    def _by_name(self, label: str) -> str | None:
        """The youngest job of this user with the name."""
        answer = self._ask("squeue", *_SQUEUE, "--me", f"--name={label}", "--format=%A")
        if answer.code:
            raise LauncherSilent(f"slurm: squeue: {last_line(answer)}")
        numbers = [int(word) for word in answer.out.split()]
        if not numbers and self._accounting:
            since = f"--starttime=now-{_DAYS}days"
            named = ("--format=JobIDRaw", f"--name={label}", since)
            known = self._ask("sacct", *_SACCT, *named)
            self._accounting = "accounting storage is disabled" not in known.err
            numbers = [int(word) for word in known.out.split()] if not known.code else []
        return str(max(numbers)) if numbers else None

    def _names(self, lists: set[str]) -> dict[str, tuple[str, ...]]:
        """Spell out lists of nodes such as n[1-4]."""
        found: dict[str, tuple[str, ...]] = {}
        for nodes in lists:
            if nodes in ("", "None assigned", "(null)"):
                found[nodes] = ()
            elif "[" not in nodes:
                found[nodes] = tuple(nodes.split(","))
            else:
                names = self._ask("scontrol", "show", "hostnames", nodes).out.split()
                found[nodes] = tuple(names) or (nodes,)
        return found

    def _forgotten(self, handle: str) -> JobStatus:
        why = "" if self._accounting else _FORGETS
        return JobStatus(state="unknown", reason=f"Slurm knows no job {handle}{why}")

    def _ask(self, *words: str, out: Path | None = None) -> Answer:
        answer = ask(
            words, launcher="slurm", env=_environment(), patience_s=self.options.patience_s, out=out
        )
        if answer.code and any(silent in answer.err for silent in _SILENT):
            raise LauncherSilent(f"slurm: {words[0]}: {last_line(answer)}")
        return answer


_SBATCH = ("sbatch", "--parsable", "--kill-on-invalid-dep=yes")
"""Without kill-on-invalid-dep a job whose dependency failed waits for ever."""
_SQUEUE = ("--noheader", "--states=all")
_SACCT = ("--noheader", "--parsable2", "--allocations")


def _environment() -> dict[str, str]:
    """Drop a surrounding job's variables, which change the commands; sites' for sbatch stay."""
    dropped = ("SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SPRIO_")
    own = {n: v for n, v in os.environ.items() if n in _KEPT or not n.startswith(dropped)}
    return {**own, "SLURM_TIME_FORMAT": "%s"}


def _words(run: Path, label: str) -> list[str]:
    """Logs start anew with a requeued job: two attempts in one would be read as one."""
    folder, logs = run / "job", str(run).replace("%", "%%")
    outputs = [f"--output={logs}/stdout.log", f"--error={logs}/stderr.log", "--open-mode=truncate"]
    return [*outputs, f"--chdir={folder}", f"--job-name={label}", str(folder / "job.sbatch")]


def _keep(folder: Path, label: str, *, array: str | None, task: int | None) -> None:
    (folder / _STAMP).unlink(missing_ok=True)
    keep_sent(folder, label=label, array=array, task=task)


def _number(text: str) -> str | None:
    """Read sbatch --parsable: NUMBER or NUMBER;CLUSTER."""
    word = text.strip().partition(";")[0]
    return word if word.isdecimal() else None


def _rows(answer: Answer, fields: Sequence[str]) -> list[list[str]]:
    rows = [line.split("|")[: len(fields)] for line in answer.out.splitlines()]
    return [[cell.strip() for cell in row] for row in rows if len(row) == len(fields)]


def _check_handle(handle: str) -> str:
    if not all(part.isdecimal() for part in handle.split("_", maxsplit=1)):
        raise LauncherError(f"slurm: {handle!r} is no number of a job")
    return handle
