"""What is peculiar to runs on this machine: they outlive the tuner, share the machine, and leave
nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.platforms.executors.harness import TIMEOUT_S, Harness, bash, machine_of_its_own

from meshwright.platforms.local import watcher as watch
from meshwright.platforms.local.executor import LocalExecutor, LocalOptions
from meshwright.values.errors import ConfigError, LauncherError

TUNER = """
import sys, time
from pathlib import Path
from meshwright.platforms.job import Job
from meshwright.platforms.local.executor import LocalExecutor
job = Job(name="a", command=("bash", "-c", sys.argv[2]), nodes=1, gpus_per_node=1, runs_on="node")
print(LocalExecutor().submit(job, directory=Path(sys.argv[1]), label="a-1"), flush=True)
time.sleep(300)
"""


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with machine_of_its_own(tmp_path_factory.mktemp("locks")):
        yield


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(make=lambda: LocalExecutor(LocalOptions(stop_grace_s=0.5)), folder=tmp_path)


def wait_until(found: object) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not found():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


def read_when_there(path: Path) -> str:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return path.read_text()


def alive(pid: str) -> bool:
    try:
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_run_outlives_its_tuner(harness: Harness) -> None:
    """kill -9 of the tuner and of all in its process group; another one adopts the run and learns
    its exit code."""
    line = "echo up; sleep 1; exit 5"
    tuner = subprocess.Popen(
        [sys.executable, "-c", TUNER, str(harness.folder / "r"), line],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert tuner.stdout is not None
    handle = tuner.stdout.readline().decode().strip()
    os.killpg(tuner.pid, signal.SIGKILL)
    tuner.wait()
    tuner.stdout.close()
    assert harness.executor.find("a-1", directory=harness.folder / "r") == handle
    assert harness.end(handle)[handle].exit_code == 5


def test_no_process_is_left_whatever_it_does(harness: Harness) -> None:
    """A worker in a session of its own that ignores SIGTERM, and one that drops its environment."""
    stubborn = "trap '' TERM; echo $BASHPID; while :; do sleep 1; done"
    line = (
        f"setsid bash -c '{stubborn.replace(chr(39), chr(34))}' & env -i setsid sleep 299 & echo"
        " $!; wait"
    )
    directory, label = harness.place()
    handle = harness.executor.submit(bash(line), directory=directory, label=label)
    wait_until(
        lambda: (
            (directory / "stdout.log").exists()
            and len((directory / "stdout.log").read_text().split()) == 2
        )
    )
    pids = (directory / "stdout.log").read_text().split()
    assert all(map(alive, pids))
    harness.executor.cancel(handle)
    assert harness.end(handle)[handle].state == "cancelled"
    assert not any(map(alive, pids))


def test_nothing_is_left_behind_by_a_program_that_ends_well(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(
        bash("setsid sleep 298 & echo $!"), directory=directory, label=label
    )
    assert harness.end(handle)[handle].state == "succeeded"
    assert not alive((directory / "stdout.log").read_text())


def test_a_watcher_that_is_killed_takes_its_job_along(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(bash("echo $$; sleep 297"), directory=directory, label=label)
    harness.wait(handle, "running")
    program = read_when_there(directory / "stdout.log")
    os.kill(int((directory / "job" / "pid").read_text()), signal.SIGKILL)
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code) == ("failed", None)
    assert "killed from outside" in status.reason
    assert not alive(program)


def test_end_of_the_allocation_is_no_cancel_of_ours(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(bash("sleep 296"), directory=directory, label=label)
    harness.wait(handle, "running")
    os.kill(int((directory / "job" / "pid").read_text()), signal.SIGTERM)
    assert harness.end(handle)[handle].state == "preempted"


def test_another_process_with_the_same_number_is_not_the_run(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(bash("sleep 295"), directory=directory, label=label)
    harness.wait(handle, "running")
    watcher = int((directory / "job" / "pid").read_text())
    os.kill(watcher, signal.SIGKILL)
    reused = handle.replace(str(watcher), str(os.getpid()), 1)
    assert harness.status(reused).state == "failed"
    harness.executor.cancel(reused)


def test_a_run_of_another_machine_is_not_judged(harness: Harness) -> None:
    """Its directory may be on a file system that both see; processes are told apart on its own
    machine alone."""
    directory, label = harness.place()
    handle = harness.executor.submit(bash("sleep 293"), directory=directory, label=label)
    harness.wait(handle, "running")
    spec = directory / "job" / "watch.json"
    spec.write_text(
        spec.read_text().replace(f'"host": "{os.uname().nodename}"', '"host": "elsewhere"')
    )
    gone = handle.replace(handle.partition("@")[0], "999999", 1)
    assert harness.status(gone).state == "unknown"
    assert "started on elsewhere" in harness.status(gone).reason
    assert harness.status(handle).state == "running"
    harness.executor.cancel(handle)
    harness.end(handle)


def test_runs_wait_for_their_share_of_the_machine(tmp_path: Path) -> None:
    """Four jobs of two processes each on four GPUs: two run at a time, on GPUs of their own."""
    job = replace(
        bash('echo "$CUDA_VISIBLE_DEVICES"; date +%s.%N; sleep 0.7; date +%s.%N'), gpus_per_node=2
    )
    harness = Harness(
        make=lambda: LocalExecutor(LocalOptions(devices=(4, 5, 6, 7))), folder=tmp_path
    )
    assert harness.executor.slots(job) == 2
    places = [harness.place() for _ in range(4)]
    handles = [
        harness.executor.submit(job, directory=directory, label=label)
        for directory, label in places
    ]
    seen = [
        status.reason
        for status in harness.executor.poll(handles).values()
        if status.state == "queued"
    ]
    assert set(seen) <= {"waits for 2 of 4 GPUs or cores that other runs hold"}
    assert {status.state for status in harness.end(*handles).values()} == {"succeeded"}
    lines = [(directory / "stdout.log").read_text().split() for directory, _ in places]
    spans = [
        ({int(number) for number in devices.split(",")}, float(start), float(end))
        for devices, start, end in lines
    ]
    for number, (devices, start, end) in enumerate(spans):
        assert len(devices) == 2 and devices <= {4, 5, 6, 7}
        for others, other_start, other_end in spans[:number]:
            assert not devices & others or end <= other_start or other_end <= start


def test_processes_get_a_core_each(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(bash("nproc"), directory=directory, label=label)
    harness.end(handle)
    assert (directory / "stdout.log").read_text() == "1\n"


def test_a_waiting_run_is_cancelled_before_it_starts(tmp_path: Path) -> None:
    harness = Harness(make=lambda: LocalExecutor(LocalOptions(devices=(9,))), folder=tmp_path)
    first, second = harness.submit(bash("sleep 294")), harness.submit(bash("echo never"))
    harness.wait(first, "running")
    assert harness.status(second).state == "queued"
    harness.executor.cancel(second)
    status = harness.end(second)[second]
    assert (status.state, status.exit_code, status.started_s) == ("cancelled", None, None)
    harness.executor.cancel(first)
    harness.end(first)


@pytest.mark.parametrize(
    ("line", "code", "reason"),
    [("kill -SEGV $$", 139, "SIGSEGV"), ("kill -KILL $$", 137, "SIGKILL")],
)
def test_signals_are_named(harness: Harness, line: str, code: int, reason: str) -> None:
    handle = harness.submit(bash(line))
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code) == ("failed", code)
    assert reason in status.reason


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[watch._Watch]:
    (tmp_path / "job").mkdir()
    (tmp_path / "stderr.log").write_text("worker 3 ... Signal 9 (SIGKILL) received by PID 17")
    (tmp_path / "job" / "watch.json").write_text(json.dumps({"token": "a", "limit_s": None}))
    yield watch._Watch(tmp_path)


@pytest.mark.parametrize(
    ("status", "killed", "state"),
    [
        (-9, 1, "out_of_memory"),
        (-9, 0, "failed"),
        (1, 1, "out_of_memory"),
        (1, 0, "failed"),
        (0, 1, "succeeded"),
    ],
)
def test_out_of_memory_needs_a_kill_and_the_kernels_count(
    follower: watch._Watch, status: int, killed: int, state: str
) -> None:
    """Either alone may be another's doing: a kill by hand, or a neighbour that ran out of
    memory."""
    assert follower._how(status, None, killed)["state"] == state


def test_a_neighbour_that_ran_out_of_memory_is_not_ours(follower: watch._Watch) -> None:
    (follower.run / "stderr.log").write_text("ValueError: no such file")
    assert follower._how(1, None, 1)["state"] == "failed"


def test_end_is_written_on_a_full_disk(harness: Harness) -> None:
    """Its room is taken at the start."""
    directory, label = harness.place()
    handle = harness.executor.submit(bash("sleep 0.5; exit 4"), directory=directory, label=label)
    harness.wait(handle, "running")
    assert (directory / "job" / "end.json.new").stat().st_size >= 4096
    assert harness.end(handle)[handle].exit_code == 4


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (replace(bash("true"), nodes=2), "this machine is one"),
        (replace(bash("true"), gpus_per_node=4096), "starts 4096 processes, and runs may use"),
    ],
)
def test_a_job_larger_than_the_machine(harness: Harness, job: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        harness.executor.submit(job, directory=harness.folder / "large", label="a-1")  # type: ignore[arg-type]


def test_torchrun_is_not_there(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    (harness.folder / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(harness.folder))
    monkeypatch.setattr(sys, "executable", str(harness.folder / "python3"))
    with pytest.raises(LauncherError, match="local: torchrun is not there: pip install"):
        harness.executor.check()


def test_a_directory_that_cannot_be_written(harness: Harness) -> None:
    (harness.folder / "file").write_text("")
    with pytest.raises(LauncherError, match="could not be written"):
        harness.executor.submit(
            bash("true"), directory=harness.folder / "file" / "run", label="a-1"
        )


def test_what_is_no_handle(harness: Harness) -> None:
    with pytest.raises(LauncherError, match="no handle"):
        harness.executor.poll(["12"])


def test_a_watcher_in_trouble_ends_the_job_and_says_so(harness: Harness) -> None:
    directory, label = harness.place()
    (directory / "job" / "start.json.new").mkdir(
        parents=True
    )  # cannot be written, as on a full disk
    handle = harness.executor.submit(bash("echo $$; sleep 292"), directory=directory, label=label)
    status = harness.end(handle)[handle]
    assert status.state == "failed" and "IsADirectoryError" in status.reason
    assert not (text := (directory / "stdout.log").read_text()) or not alive(text)
