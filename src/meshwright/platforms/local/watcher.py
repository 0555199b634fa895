"""Runs one local job to its end, apart from whoever started it: `python -P watcher.py DIRECTORY
TOKEN`, with only psutil beside it.

It waits for its share of the machine, starts `job/job.sh`, ends it at its limit or when told to
(SIGTERM), leaves no process behind and writes how it ended to `job/end.json` in one step.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

__all__ = ["PID", "kill_marked"]

WATCH, PID, START, CANCEL, END = "watch.json", "pid", "start.json", "cancel", "end.json"
"""Files in `job/`: what to do, who does it, that it runs and on what, that it was cancelled, and
how it ended."""
MARK = "MESHWRIGHT_RUN"
"""A variable by which every process of a run is known, whoever its parent is."""
_BLANK = " " * 4096
"""Room for the end, taken at the start: a disk that fills up in between can't lose it."""
_TICK_S = 0.1
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: processes whose parent died come to the watcher, not to init."""
_LOG_TAIL_BYTES = 65536
_STOPPED = {
    "cancelled": "cancelled",
    "preempted": (
        "its watcher was told to end (SIGTERM), as when a machine shuts down or an allocation ends"
    ),
    "timed_out": "stopped at its limit of {} s",
}
_VMSTAT = Path("/proc/vmstat")


class _Watch:
    """One job from its place in the queue to its end."""

    def __init__(self, run: Path) -> None:
        self.run, self.folder = run, run / "job"
        self.spec: dict[str, Any] = json.loads((self.folder / WATCH).read_text())
        self.stopped: str | None = None
        self.started_s: float | None = None

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        """Remember that the job is to end: by our word, or with machine or allocation."""
        self.stopped = "cancelled" if (self.folder / CANCEL).exists() else "preempted"

    def follow(self) -> None:
        """Run the job and write its end."""
        (self.folder / f"{END}.new").write_text(_BLANK)
        try:
            units = self._wait_for_units()
            if units is None:
                end = self._stopped(self.stopped or "cancelled", None)
            else:
                end = self._run(units)
        except Exception as error:  # whatever it is, a tuner waits for the end
            end = self._ended("failed", None, f"{type(error).__name__}: {error}")
        with (self.folder / f"{END}.new").open("r+") as file:
            file.write(json.dumps(end))
            file.flush()
            os.fsync(file.fileno())
        (self.folder / f"{END}.new").rename(self.folder / END)

    def _wait_for_units(self) -> list[str] | None:
        """Lock a chip or core for each process; one job at a time, so that none starves."""
        places = Path(self.spec["locks"])
        places.mkdir(mode=0o700, exist_ok=True)
        gate, held = None, dict[str, int]()
        while len(held) < self.spec["count"]:
            if self.stopped:
                return None
            gate = _lock(places / "gate") if gate is None else gate
            for unit in self.spec["units"] if gate is not None else ():
                if unit not in held and len(held) < self.spec["count"]:
                    lock = _lock(places / unit.replace("/", "_"))
                    held.update({} if lock is None else {unit: lock})
            if len(held) < self.spec["count"]:
                time.sleep(_TICK_S)
        if gate is not None:
            os.close(gate)
        return list(held)

    def _run(self, units: list[str]) -> dict[str, Any]:
        """Start the job and wait for its end, its limit, or a word to stop."""
        self.started_s = time.time()
        numbers = [unit.partition("-")[2] for unit in units]
        env = {**os.environ, **self.spec["environment"], MARK: self.spec["token"]}
        env["MASTER_PORT"] = str(_free_port())
        if self.spec["kind"] == "gpu":
            env["CUDA_VISIBLE_DEVICES"] = ",".join(numbers)
        elif self.spec["kind"] == "core" and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {int(number) for number in numbers})
        killed = _killed_for_memory()
        with (
            (self.run / "stdout.log").open("wb") as out,
            (self.run / "stderr.log").open("wb") as err,
        ):
            job = subprocess.Popen(
                ["bash", "job.sh"],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            known = {"token": self.spec["token"], "started_s": self.started_s, "units": units}
            _put(self.folder / START, json.dumps(known))
            self._wait_for_end(job)
            stopped = self.stopped
        finally:
            _end_all(self.spec["token"], self.spec["grace_s"])
        return self._how(job.wait(), stopped, _killed_for_memory() - killed)

    def _wait_for_end(self, job: subprocess.Popen[bytes]) -> None:
        """Return when the program ended, its limit came, or somebody wants it ended."""
        limit_s = float("inf") if self.spec["limit_s"] is None else self.spec["limit_s"]
        started = time.monotonic()
        while job.poll() is None and self.stopped is None:
            if time.monotonic() - started >= limit_s:
                self.stopped = "timed_out"
            time.sleep(_TICK_S)

    def _how(self, status: int, stopped: str | None, killed: int) -> dict[str, Any]:
        """Say how it ended, from its status, what stopped it, and the kernel's kills."""
        code = 128 - status if status < 0 else status
        if stopped is not None:
            return self._stopped(stopped, code)
        if status == 0:
            return self._ended("succeeded", 0, "")
        if killed > 0 and self._by_sigkill(code):
            reason = f"the kernel killed {killed} processes of this machine for want of memory"
            return self._ended("out_of_memory", code, f"{reason} meanwhile")
        by_signal = f"ended by {signal.Signals(-status).name}" if status < 0 else ""
        return self._ended("failed", code, by_signal or f"exit code {code}")

    def _stopped(self, state: str, code: int | None) -> dict[str, Any]:
        return self._ended(state, code, _STOPPED[state].format(self.spec["limit_s"]))

    def _by_sigkill(self, code: int) -> bool:
        """Whether the job was killed, or a worker, as torchrun tells in its log."""
        if code == 128 + signal.SIGKILL:
            return True
        with (self.run / "stderr.log").open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES, 0))
            return b"SIGKILL" in file.read()

    def _ended(self, state: str, code: int | None, reason: str) -> dict[str, Any]:
        how = {"token": self.spec["token"], "state": state, "exit_code": code, "reason": reason}
        return {**how, "started_s": self.started_s, "ended_s": time.time()}


def _put(path: Path, text: str) -> None:
    """Write a file that others see whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_text(text)
        new.rename(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _lock(path: Path) -> int | None:
    """Return a lock that ends with this process, or None where another holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _free_port() -> int:
    """A port of this job's own, where programs meet that start their ranks themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _killed_for_memory() -> int:
    """How many processes the kernel has killed for memory so far; 0 where it is not told."""
    lines = _VMSTAT.read_text().splitlines() if _VMSTAT.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _end_all(token: str, grace_s: float) -> None:
    """End every process of the job: asked first, killed after a while."""
    _tell(_left(token), signal.SIGTERM)
    end = time.monotonic() + grace_s
    while _left(token) and time.monotonic() < end:
        time.sleep(_TICK_S)
    while left := _left(token):
        _tell(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=_TICK_S)


def _left(token: str) -> list[psutil.Process]:
    """Processes of the job that still run: all below the watcher, and those with its mark."""
    children = psutil.Process().children(recursive=True)
    below = [process for process in children if not _is_over(process)]
    return below + [process for process in _marked(token) if process not in below]


def _is_over(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _marked(token: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == token and not _is_over(process):
                found.append(process)
        except psutil.Error:
            continue  # it has ended meanwhile, or is another user's
    return found


def _tell(processes: list[psutil.Process], sent: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(sent)


def kill_marked(token: str) -> None:
    """Kill what is left of a run whose watcher is dead, and what that starts meanwhile."""
    while left := _marked(token):
        _tell(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=_TICK_S)


def main(run: Path) -> None:
    """Follow a run in a process that belongs to nobody; print its number once it is on its way."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader) as ready:
            print(ready.read())
        return
    os.close(reader)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    watch = _Watch(run)
    signal.signal(signal.SIGTERM, watch.stop)
    _put(watch.folder / PID, str(os.getpid()))
    with os.fdopen(writer, "w") as ready:
        ready.write(str(os.getpid()))
    log = os.open(watch.folder / "watch.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    watch.follow()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
