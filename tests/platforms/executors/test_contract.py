"""What every executor keeps, on whatever launcher."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.platforms.examples import NASTY
from tests.platforms.executors.harness import (
    Harness,
    bash,
    client_program,
    inside_base_command,
    machine_of_its_own,
    package_of_orbit,
    programs,
)
from tests.platforms.executors.kubernetes_api import running_cluster
from tests.platforms.executors.test_base_command import FIELDS, installed
from tests.slurm import require_slurm, running_slurm

from meshwright.platforms.base_command.allocation import AllocationOptions, BcprunExecutor
from meshwright.platforms.base_command.executor import BaseCommandExecutor, BaseCommandOptions
from meshwright.platforms.kubernetes.executor import KubernetesExecutor
from meshwright.platforms.local.executor import LocalExecutor, LocalOptions
from meshwright.platforms.registry import executor, find_runner, runners
from meshwright.platforms.slurm.executor import SlurmExecutor
from meshwright.software.contract import ExportedFile
from meshwright.values.errors import ConfigError

HELLO = 'echo "hello from $PWD"; echo oops >&2'
SLEEP = "echo up; sleep 300"


def local(folder: Path) -> Iterator[Harness]:
    handle = f"999999@no-such-run-1:{folder}/none"
    with programs(folder, "torchrun"), machine_of_its_own(folder):
        yield Harness(
            make=lambda: LocalExecutor(LocalOptions(stop_grace_s=2)),
            folder=folder,
            unknown_handle=handle,
        )


def slurm(folder: Path) -> Iterator[Harness]:
    require_slurm()
    with running_slurm(folder / "cluster") as cluster:
        harness = Harness(make=SlurmExecutor, folder=folder, unknown_handle="999999")
        harness.overdue = harness.submit(replace(bash(SLEEP), time_limit_s=60))
        harness.wait(harness.overdue, "running")
        cluster.ask(
            "scontrol", "update", f"jobid={harness.overdue}", "EndTime=now+1"
        )  # a minute is the shortest that it counts
        yield harness


def k8s(folder: Path) -> Iterator[Harness]:
    with running_cluster(folder / "cluster"):
        handle = f"research/trainjob/none:{folder}/none"
        yield Harness(
            make=KubernetesExecutor,
            folder=folder,
            fields={"image": "pytorch:25.04"},
            unknown_handle=handle,
        )


def bcp(folder: Path) -> Iterator[Harness]:
    with installed(folder):
        yield Harness(
            make=lambda: BaseCommandExecutor(BaseCommandOptions(log_every_s=0)),
            folder=folder,
            fields=FIELDS,
            unknown_handle=f"1@:{folder}/none",
            tells_exit_codes=False,
        )


def bcprun(folder: Path) -> Iterator[Harness]:
    with inside_base_command(folder, nodes=2), machine_of_its_own(folder):
        yield Harness(
            make=lambda: BcprunExecutor(AllocationOptions(stop_grace_s=2)),
            folder=folder,
            unknown_handle=f"999999@no-such-run-1:{folder}/none",
        )


def client(folder: Path, *, name: str, program: str, **fields: str) -> Iterator[Harness]:
    """Yield a launcher that is reached by a command line of its own."""
    of = "runai" if program == "orbit" else program
    with client_program(folder, program, of=of):
        yield Harness(
            make=lambda: executor(name, log_every_s=0),
            folder=folder,
            fields=fields,
            unknown_handle=f"none@:{folder}/none",
            tells_exit_codes=False,
            tells_times=False,
            limit_reads_as="failed",
        )


def orbit(folder: Path) -> Iterator[Harness]:
    with package_of_orbit(folder):
        yield from client(folder, name="orbit", program="orbit", image=IMAGE)


IMAGE = "pytorch:25.04"
LAUNCHERS: dict[str, Callable[[Path], Iterator[Harness]]] = {
    "local": local,
    "slurm": slurm,
    "k8s": k8s,
    "bcp": bcp,
    "bcprun": bcprun,
    "runai": partial(client, name="runai", program="runai", image=IMAGE),
    "lepton": partial(client, name="lepton", program="lep", image=IMAGE, instance="gpu.8xh100"),
    "sky": partial(client, name="sky", program="sky", instance="H100"),
    "pai-dlc": partial(
        client, name="pai-dlc", program="aliyun", image=IMAGE, account="12345", instance="ecs.x"
    ),
    "orbit": orbit,
}
"""The last is another package's."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if name == "slurm" else [])
        for name in LAUNCHERS
    ],
)
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    yield from LAUNCHERS[request.param](tmp_path_factory.mktemp(f"{request.param}-"))


def test_every_executor_of_the_registry_is_held_to_this() -> None:
    """Kinds of jobs on Kubernetes share one executor, whose other kinds test_kubernetes.py runs."""
    held = {find_runner(name).start for name in LAUNCHERS if name != "orbit"}
    assert held == {find_runner(name).start for name in runners()}


def test_launcher_is_there(harness: Harness) -> None:
    harness.executor.check()


def test_success(harness: Harness) -> None:
    before_s = time.time()
    directory, label = harness.place()
    handle = harness.executor.submit(harness.of(bash(HELLO)), directory=directory, label=label)
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code) == ("succeeded", 0)
    started_s = before_s if status.started_s is None else status.started_s
    assert status.started_s is not None or not harness.tells_times
    assert status.ended_s is not None
    assert before_s - 2 <= started_s <= status.ended_s <= time.time() + 2
    assert "hello from " in (directory / "stdout.log").read_text()
    assert "oops" in (directory / "stderr.log").read_text() + (directory / "stdout.log").read_text()
    assert list((directory / "job").glob("job.*")), "what was sent stands there"


def test_exit_code(harness: Harness) -> None:
    handle = harness.submit(bash("exit 7"))
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code) == ("failed", 7 if harness.tells_exit_codes else None)
    assert status.reason


def test_words_arrive_as_they_are(harness: Harness) -> None:
    directory, label = harness.place()
    line = 'printf "%s\\0" "$@" "$ODD_VALUE" | base64 -w0'
    handle = harness.executor.submit(harness.of(bash(line)), directory=directory, label=label)
    assert harness.end(handle)[handle].state == "succeeded"
    words = base64.b64decode((directory / "stdout.log").read_text()).decode().split("\0")
    assert words == [*NASTY, "".join(NASTY), ""]


def test_files_travel_with_the_job(harness: Harness) -> None:
    directory, label = harness.place()
    job = replace(
        bash("cat data/blend.txt"),
        files=(ExportedFile(name="data/blend.txt", text="from the file"),),
    )
    handle = harness.executor.submit(harness.of(job), directory=directory, label=label)
    assert harness.end(handle)[handle].state == "succeeded"
    said = (directory / "stdout.log").read_text()
    assert said.removesuffix("\n") == "from the file"  # where a platform keeps lines, each is ended


def test_cancel(harness: Harness) -> None:
    handle = harness.submit(bash(SLEEP))
    running = harness.wait(handle, "running")
    assert running.exit_code is None and running.started_s is not None
    harness.executor.cancel(handle)
    assert harness.end(handle)[handle].state == "cancelled"
    harness.executor.cancel(handle)
    assert harness.status(handle).state == "cancelled"


def test_cancel_leaves_what_has_ended(harness: Harness) -> None:
    handle = harness.submit(bash("true"))
    assert harness.end(handle)[handle].state == "succeeded"
    harness.executor.cancel(handle)
    assert harness.status(handle).state == "succeeded"


def test_many_at_once(harness: Harness) -> None:
    handles = [harness.submit(bash(f"exit {number % 2}")) for number in range(5)]
    assert len(set(handles)) == 5
    expected = ["succeeded", "failed", "succeeded", "failed", "succeeded"]
    assert [status.state for status in harness.end(*handles).values()] == expected


def test_found_again_by_another_process(harness: Harness) -> None:
    """The tuner died after it had started a job and before it had written down which."""
    directory, label = harness.place()
    assert harness.executor.find(label, directory=directory) is None
    handle = harness.executor.submit(harness.of(bash("exit 3")), directory=directory, label=label)
    another = harness.make()
    assert another.find(label, directory=directory) == handle
    assert another.find(f"{label}-b", directory=directory) is None
    assert harness.end(handle)[handle].state == "failed"
    assert another.find(label, directory=directory) == handle
    assert another.poll([handle])[handle].state == "failed"


def test_unknown_handle(harness: Harness) -> None:
    status = harness.status(harness.unknown_handle)
    assert status.state == "unknown" and status.reason
    harness.executor.cancel(harness.unknown_handle)


def test_nothing_to_ask(harness: Harness) -> None:
    assert dict(harness.executor.poll([])) == {}


@pytest.mark.parametrize("label", ["", "A", "a_b", "1a", "a-", "a" * 41, "a b", "a\n"])
def test_label_that_some_launcher_refuses(harness: Harness, label: str) -> None:
    with pytest.raises(ConfigError, match="label="):
        harness.executor.submit(
            harness.of(bash("true")), directory=harness.folder / "bad", label=label
        )


def test_slots(harness: Harness) -> None:
    slots = harness.executor.slots(harness.of(bash("true")))
    assert slots is None or slots >= 1


def test_time_limit(harness: Harness) -> None:
    handle = harness.overdue or harness.submit(replace(bash(SLEEP), time_limit_s=1))
    assert harness.end(handle)[handle].state == harness.limit_reads_as
