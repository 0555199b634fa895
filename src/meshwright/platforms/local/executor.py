"""Jobs on this machine: one watcher each, which outlives whoever started it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from meshwright.platforms.executor import (
    Handle,
    JobState,
    JobStatus,
    check_label,
    put_job,
    state_of,
    state_table,
)
from meshwright.platforms.files import replace_file
from meshwright.platforms.given import ask_nvidia_smi
from meshwright.platforms.job import Job, JobText
from meshwright.platforms.registry import job_text
from meshwright.values.errors import ConfigError, LauncherError, MissingExtraError, install_words

__all__ = ["STATES", "LocalExecutor", "LocalOptions"]

_STARTING_S = 60.0
"""A watcher is on its way within a second, or the machine is in no state to measure anything."""
_WATCHER = Path(__file__).parent / "watcher.py"


def _handle(text: str) -> Handle:
    """`PID@TOKEN:DIRECTORY`; the token tells a later process of the same number apart."""
    return Handle.of(text, r"(\d+)@([^:]+)", wrong="local: {!r} is no handle of a local job")


_ENDS: tuple[JobState, ...] = (
    *("succeeded", "failed", "cancelled", "timed_out", "out_of_memory", "preempted"),
)
STATES = state_table({state: state for state in _ENDS})
"""The words that the watcher ends with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalOptions:
    """This machine."""

    devices: tuple[int, ...] | None = None
    """GPUs that runs may use, by their numbers; () for none, when processes get a core each. None:
    those of CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists."""
    cores: int | None = None
    """Cores for runs on processors, one a process; None: all that this process may use."""
    stop_grace_s: float = 10.0
    """Time between asking a job to end and killing it."""

    def __post_init__(self) -> None:
        if self.cores is not None and self.cores < 1:
            raise ConfigError(f"cores={self.cores}: expected 1 or more")
        if self.stop_grace_s < 0:
            raise ConfigError(f"stop_grace_s={self.stop_grace_s}: expected seconds, 0 or more")


class LocalExecutor:
    """torchrun on this machine. Runs wait for GPUs, or cores, that others of this user hold."""

    name = "local"

    def __init__(self, options: LocalOptions | None = None) -> None:
        self.options = options or LocalOptions()
        self._units: tuple[str, ...] | None = None

    def check(self) -> None:
        if find_spec("psutil") is None:
            raise MissingExtraError("psutil", "train")
        for program, advice in (
            ("bash", "install it"),
            ("torchrun", f"{install_words('train')} brings it with torch"),
        ):
            if shutil.which(program, path=_path()) is None:
                raise LauncherError(f"local: {program} is not there: {advice}")

    def slots(self, job: Job) -> int:
        """Return how many such jobs the GPUs, or the cores, hold."""
        units = self._all_units()
        if job.nodes > 1:
            raise ConfigError(f"local: {job.name} wants {job.nodes} nodes, and this machine is one")
        if job.num_gpus > len(units):
            on_gpus = bool(units) and units[0].startswith("gpu-")
            kind = "GPUs here (devices)" if on_gpus else "cores here (cores)"
            raise ConfigError(
                f"local: {job.name} starts {job.num_gpus} processes, and runs may use {len(units)}"
                f" {kind}"
            )
        return len(units) // job.num_gpus

    def written(self, job: Job, *, directory: Path, label: str) -> JobText:
        return job_text(self._named(job, label), launcher="torchrun")

    def submit(self, job: Job, *, directory: Path, label: str) -> str:
        """Start a watcher, which waits for as many GPUs or cores as there are processes."""
        self.slots(job)
        run = directory.absolute()
        put_job(run, self._named(job, label), self.written(job, directory=run, label=label))
        spec = self._spec(job, label)
        try:
            for old in ("pid", "start.json", "cancel", "end.json"):
                (run / "job" / old).unlink(missing_ok=True)
            replace_file(run / "job" / "watch.json", json.dumps(spec, indent=1).encode())
            pid = _start(run, spec["token"])
        except (OSError, subprocess.SubprocessError) as error:
            why = getattr(error, "strerror", None) or error
            raise LauncherError(f"local: {label} could not be started: {why}") from None
        return str(Handle(key=str(pid), owner=spec["token"], directory=run))

    def find(self, label: str, *, directory: Path) -> str | None:
        folder = directory.absolute() / "job"
        spec, pid = _read(folder / "watch.json"), folder / "pid"
        if spec is None or spec["label"] != label or not pid.exists():
            return None
        return str(Handle(key=pid.read_text(), owner=spec["token"], directory=directory.absolute()))

    def poll(self, handles: Sequence[str]) -> Mapping[str, JobStatus]:
        """Read how each ended; where nothing was written yet, look at its watcher."""
        return {handle: self._status(_handle(handle)) for handle in handles}

    def cancel(self, handle: str) -> None:
        """Tell the watcher, which ends the job after this call, and even without us."""
        own = _handle(handle)
        if self._status(own).state not in ("queued", "running"):
            return
        (own.folder / "cancel").touch()
        with suppress(ProcessLookupError):
            os.kill(int(own.key), signal.SIGTERM)

    def _named(self, job: Job, label: str) -> Job:
        """The watcher holds the limit, and ends what `timeout` around torchrun would leave."""
        return replace(job, name=check_label(label), time_limit_s=None)

    def _all_units(self) -> tuple[str, ...]:
        if self._units is None:
            own = self.options
            devices = _devices() if own.devices is None else [*map(str, own.devices)]
            found = [f"gpu-{device}" for device in devices]
            self._units = tuple(found or [f"core-{core}" for core in _cores()[: own.cores]])
        return self._units

    def _spec(self, job: Job, label: str) -> dict[str, Any]:
        units = self._all_units()
        return {
            "label": label,
            "host": _here()[0],
            "token": f"{label}-{time.time_ns()}",
            "limit_s": job.time_limit_s,
            "grace_s": self.options.stop_grace_s,
            "kind": "gpu" if units[0].startswith("gpu-") else "core",
            "units": list(units),
            "count": job.num_gpus,
            "locks": str(Path(tempfile.gettempdir()) / f"meshwright-{os.getuid()}"),
            "environment": {"PATH": _path()},
        }

    def _status(self, own: Handle) -> JobStatus:
        folder = own.folder
        watched = _is_watched(own)  # asked first: what it wrote as its last act is there then
        end = _read(folder / "end.json")
        if end is not None and end["token"] == own.owner:
            times = {name: end[name] for name in ("started_s", "ended_s")}
            return JobStatus(
                state=state_of(end["state"], STATES),
                exit_code=end["exit_code"],
                reason=end["reason"],
                nodes=_here(),
                **times,
            )
        start = _read(folder / "start.json")
        own_start = start is not None and start["token"] == own.owner
        started_s = start["started_s"] if own_start else None
        spec = _read(folder / "watch.json")
        if spec is None or spec["token"] != own.owner:
            return JobStatus(state="unknown", reason=f"{folder} holds nothing of this job")
        if not watched and spec["host"] != _here()[0]:
            reason = f"it was started on {spec['host']}, and this is {_here()[0]}"
            return JobStatus(state="unknown", reason=reason, started_s=started_s)
        if not watched:
            return _lost(own, started_s)
        if started_s is None:
            share = f"{spec['count']} of {len(spec['units'])} GPUs or cores"
            return JobStatus(state="queued", reason=f"waits for {share} that other runs hold")
        return JobStatus(state="running", started_s=started_s, nodes=_here())


def _lost(own: Handle, started_s: float | None) -> JobStatus:
    """A watcher died without a word, with the machine or by a kill; its job is killed too."""
    import psutil

    from meshwright.platforms.local.watcher import kill_marked

    known: dict[str, Any] = {"started_s": started_s, "nodes": _here()}
    if psutil.boot_time() > int(own.owner.rpartition("-")[2]) / 1e9:
        reason = "this machine was started again since"
        return JobStatus(state="node_failed", reason=reason, **known)
    kill_marked(own.owner)
    reason = "killed from outside together with its watcher; no exit code was left"
    return JobStatus(state="failed", reason=reason, **known)


def _is_watched(own: Handle) -> bool:
    import psutil

    try:
        watcher = psutil.Process(int(own.key))
        return own.owner in watcher.cmdline() and watcher.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _start(run: Path, token: str) -> int:
    """Start a watcher, which leaves this process's session and family; return its number."""
    # -P: beside the watcher lie modules with the names of packages.
    words = [sys.executable, "-P", str(_WATCHER), str(run), token]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_STARTING_S,
        start_new_session=True,
    )
    if not done.stdout.strip().isdecimal():
        said = (done.stderr.strip() or "no word from it").splitlines()[-1]
        number = re.search(r"\[Errno (\d+)\]", said)  # a full disk is known by it
        raise OSError(int(number[1]) if number else None, f"its watcher did not start: {said}")
    return int(done.stdout)


def _read(path: Path) -> Any:
    """Return what a file of JSON holds; None where there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def _path() -> str:
    """Where programs are looked for: beside this Python first, if torchrun is there."""
    own, path = Path(sys.executable).parent, os.environ.get("PATH", os.defpath)
    return f"{own}{os.pathsep}{path}" if (own / "torchrun").exists() else path


def _here() -> tuple[str, ...]:
    return (os.uname().nodename,)


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _devices() -> list[str]:
    """GPUs of CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists, if it is there."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        devices = [device.strip() for device in named.split(",")]
        return [device for device in devices if device not in ("", "-1", "NoDevFiles")]
    try:
        return (ask_nvidia_smi("index") or "").split()
    except (OSError, subprocess.SubprocessError) as error:
        raise LauncherError(
            f"local: nvidia-smi failed ({error}); name the GPUs (devices)"
        ) from None
