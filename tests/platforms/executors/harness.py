"""What the contract of executors needs of a launcher: programs that end in known ways, and time for
it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.platforms.examples import NASTY

from meshwright.platforms.executor import Executor, JobState, JobStatus
from meshwright.platforms.job import Job
from meshwright.platforms.registry import platforms
from meshwright.software.contract import EnvVar

TIMEOUT_S = 180.0


def bash(line: str) -> Job:
    """Return a job of one node that runs a line of bash once; odd words travel with it."""
    odd = EnvVar(name="ODD_VALUE", value="".join(NASTY), why="a test")
    return Job(
        name="a",
        command=("bash", "-c", line, "bash", *NASTY),
        nodes=1,
        gpus_per_node=1,
        runs_on="node",
        environment=(odd,),
    )


@contextmanager
def programs(folder: Path, *names: str, text: str = "#!/bin/bash\nexec true\n") -> Iterator[Path]:
    """Put programs of these names before all others."""
    found = folder / "bin"
    found.mkdir(exist_ok=True)
    for name in names:
        (found / name).write_text(text)
        (found / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(found), prepend=os.pathsep)
        yield found


@contextmanager
def machine_of_its_own(folder: Path) -> Iterator[None]:
    """Keep runs of a test from waiting for GPUs and cores that runs of another program hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield


@contextmanager
def inside_base_command(folder: Path, *, nodes: int, gpus: int = 8) -> Iterator[None]:
    """Be on the first node of a job of Base Command; its bcprun starts all processes here."""
    text = f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("bcprun.py")} "$@"\n'
    with programs(folder, "bcprun", text=text), pytest.MonkeyPatch.context() as patch:
        patch.setenv("NGC_ARRAY_SIZE", str(nodes))
        patch.setenv("NGC_GPUS_PER_NODE", str(gpus))
        patch.setenv("NGC_JOB_ID", f"{os.getpid()}{nodes}")
        yield


@contextmanager
def client_program(folder: Path, name: str, *, of: str | None = None) -> Iterator[None]:
    """Put a stand-in for a platform's command line where it is looked for; `of`: the program whose
    words it has."""
    (folder / "state").mkdir()
    file = Path(__file__).with_name("cloudcli.py")
    text = f'#!/bin/sh\nPROGRAM={of or name} exec {sys.executable} {file} "$@"\n'
    with programs(folder, name, text=text), pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOUD_STATE", str(folder / "state"))
        yield


@contextmanager
def package_of_orbit(folder: Path) -> Iterator[None]:
    """Install a made-up package whose entry point is the platform `orbit`."""
    info = folder / "site" / "orbit-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: orbit\nVersion: 1.0\n")
    entry = "[meshwright.platforms]\norbit = tests.platforms.executors.orbit:ORBIT\n"
    (info / "entry_points.txt").write_text(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "site"))
        platforms.cache_clear()
        yield
    platforms.cache_clear()


@dataclass
class Harness:
    """One launcher under test."""

    make: Callable[[], Executor]
    """A new executor, as another process would make it."""
    folder: Path
    fields: dict[str, Any] = field(default_factory=dict)
    """What the launcher demands of every job, such as an image."""
    unknown_handle: str = ""
    tells_exit_codes: bool = True
    tells_times: bool = True
    """Whether the launcher says when a job started; else a short one's start is seen by nobody."""
    limit_reads_as: JobState = "timed_out"
    """What a job that its limit ended is, as far as the launcher tells."""
    overdue: str = ""
    """A job that was started long ago and is ended by its limit, where that takes long."""
    executor: Executor = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        """Make the executor."""
        self.executor = self.make()

    def place(self) -> tuple[Path, str]:
        """Return the directory and the label of another run."""
        self.count += 1
        return (
            self.folder / f"run {self.count}",
            f"t{zlib.crc32(str(self.folder).encode()):x}-{self.count}",
        )

    def submit(self, job: Job) -> str:
        """Start a job in a directory of its own."""
        directory, label = self.place()
        return self.executor.submit(self.of(job), directory=directory, label=label)

    def of(self, job: Job) -> Job:
        """Return the job with what the launcher demands."""
        return replace(job, **self.fields)

    def status(self, handle: str) -> JobStatus:
        """Return how one job is."""
        return self.executor.poll([handle])[handle]

    def wait(self, handle: str, *states: str) -> JobStatus:
        """Return the status once it is one of these."""
        return wait_for(self.executor, [handle], states)[handle]

    def end(self, *handles: str) -> dict[str, JobStatus]:
        """Return the last status of each."""
        return wait_for(self.executor, handles, ())


def wait_for(
    executor: Executor, handles: Sequence[str], states: Sequence[str]
) -> dict[str, JobStatus]:
    """Poll until each is in one of the states, or over where none is named."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        found = dict(executor.poll(handles))
        assert set(found) == set(handles)
        if all(status.state in states if states else status.ended for status in found.values()):
            return found
        over = [status for status in found.values() if status.ended]
        assert not (states and over), f"ended as {over[0]}, waited for {states}"
        time.sleep(0.2)
    raise AssertionError(f"not within {TIMEOUT_S:.0f} s: {found}")
