"""The executor of Kubernetes on a real API server with etcd; operators and the node are stand-ins
that go through the same API."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.platforms.executors.api_server import NAMESPACE, Control, _place, running_control
from tests.platforms.executors.harness import Harness, bash

from meshwright.platforms.job import Job
from meshwright.platforms.kubernetes.executor import KubernetesExecutor, KubernetesOptions
from meshwright.values.errors import LauncherError, LauncherSilent

pytestmark = pytest.mark.slow
KINDS = ("trainjob", "pytorchjob", "jobset", "mpijob")
SLEEP = "echo up; exec sleep 300"
KILLS = 20


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Control]:
    with running_control(tmp_path_factory.mktemp("k8s") / "control") as started:
        yield started


@pytest.fixture
def harness(control: Control, tmp_path: Path) -> Harness:
    return Harness(make=KubernetesExecutor, folder=tmp_path, fields={"image": "pytorch:25.04"})


def of_kind(harness: Harness, kind: Any) -> Harness:
    return replace(harness, make=lambda: KubernetesExecutor(KubernetesOptions(kind=kind)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("line", "state", "code"), [("exit 0", "succeeded", 0), ("exit 9", "failed", 9)]
)
def test_the_api_takes_every_kind_as_we_write_it(
    harness: Harness, kind: str, line: str, state: str, code: int
) -> None:
    harness = of_kind(harness, kind)
    harness.executor.check()
    job = bash(f"echo out; {line}")
    if kind == "mpijob":  # it starts ranks, not nodes
        job = Job(name="a", command=("-c", f"{line[:4]}({line[5:]})"), nodes=2, gpus_per_node=1)
    handle = harness.submit(job)
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code) == (state, code)


def test_logs_come_through_the_api_while_it_runs(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(harness.of(bash(SLEEP)), directory=directory, label=label)
    harness.wait(handle, "running")
    end = time.monotonic() + 30
    while (directory / "stdout.log").read_text() != "up\n" and time.monotonic() < end:
        harness.status(handle)
    assert (directory / "stdout.log").read_text() == "up\n"
    harness.executor.cancel(handle)
    assert harness.end(handle)[handle].reason == "cancelled"
    assert (directory / "stdout.log").read_text() == "up\n"


def test_a_job_that_vanishes_is_told_from_one_that_we_cancelled(
    control: Control, harness: Harness
) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(harness.of(bash(SLEEP)), directory=directory, label=label)
    harness.wait(handle, "running")
    control.custom().delete_namespaced_custom_object(*_place("trainjob"), label)
    status = harness.end(handle)[handle]
    assert (status.state, status.reason) == (
        "cancelled",
        f"TrainJob {label} was deleted by somebody else",
    )


def test_an_api_server_that_is_killed_is_silent_and_nothing_is_lost(
    control: Control, harness: Harness
) -> None:
    handle = harness.submit(bash("sleep 3; exit 7"))
    harness.wait(handle, "running")
    control.kill_api()
    try:
        with pytest.raises(LauncherSilent, match="the API does not answer"):
            harness.status(handle)
    finally:
        control.start_api()
    end = time.monotonic() + 60
    while time.monotonic() < end:  # a server that begins answers 503 for a while
        with suppress(LauncherSilent):
            status = harness.status(handle)
            if status.ended:
                break
    assert (status.state, status.exit_code) == ("failed", 7)


def test_a_node_that_hangs_holds_nobody_for_ever(control: Control, harness: Harness) -> None:
    own = replace(harness, make=lambda: KubernetesExecutor(KubernetesOptions(patience_s=1.0)))
    handle = own.submit(bash(SLEEP))
    own.wait(handle, "running")
    control.node.hangs = True
    try:
        began = time.monotonic()
        with pytest.raises(LauncherSilent):
            own.status(handle)
        assert time.monotonic() - began < 20
    finally:
        control.node.hangs = False
    assert own.status(handle).state == "running"
    own.executor.cancel(handle)
    own.end(handle)


def test_who_may_nothing_is_told_so_before_a_run(
    control: Control, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(control.config("no-rights")))
    with pytest.raises(LauncherError, match=r'403 .*User "guest" cannot list resource "trainjobs"'):
        KubernetesExecutor().check()


def test_a_field_that_the_cluster_does_not_know_is_refused_and_not_dropped(
    control: Control, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, label = harness.place()
    written = KubernetesExecutor.written

    def misspelt(self: Any, *words: Any, **more: Any) -> Any:
        text = written(self, *words, **more)
        return replace(text, text=text.text.replace("numNodes:", "numNodesX: 1\n    numNodes:"))

    monkeypatch.setattr(KubernetesExecutor, "written", misspelt)
    with pytest.raises(LauncherError, match="unknown field"):
        harness.executor.submit(harness.of(bash("true")), directory=directory, label=label)


SUBMIT = """
import sys
from pathlib import Path
from meshwright.platforms.job import Job
from meshwright.platforms.kubernetes.executor import KubernetesExecutor
folder, label = Path(sys.argv[1]), sys.argv[2]
executor = KubernetesExecutor()
executor.check()
print("begins", flush=True)
job = Job(name="a", command=("-c", "true"), nodes=1, gpus_per_node=1, image="pytorch:25.04")
executor.submit(job, directory=folder, label=label)
print("sent", flush=True)
"""


def test_a_kill_while_a_job_is_sent_never_sends_it_twice(
    control: Control, harness: Harness, tmp_path: Path
) -> None:
    """Killed at random moments between the first word and the last; then the next start asks
    whether the job is there, and sends it where it is not."""
    chance, midway = random.Random(0), 0
    for number in range(KILLS):
        label, folder = f"kill-{number}", tmp_path / f"k{number}"
        words = [sys.executable, "-c", SUBMIT, str(folder), label]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begins\n"
            time.sleep(chance.uniform(0, 0.06))
            child.kill()
            midway += b"sent" not in child.stdout.read()
        executor = KubernetesExecutor()
        handle = executor.find(label, directory=folder)
        if handle is None:
            job = harness.of(bash("true"))
            handle = executor.submit(job, directory=folder, label=label)
        assert executor.find(label, directory=folder) == handle
        assert harness.end(handle)[handle].state == "succeeded"
    jobs = control.custom().list_namespaced_custom_object(*_place("trainjob"))["items"]
    names = [job["metadata"]["name"] for job in jobs if job["metadata"]["name"].startswith("kill-")]
    assert sorted(names) == sorted(f"kill-{number}" for number in range(KILLS))
    assert midway >= KILLS // 2, "most were killed while they sent"
    assert handle is not None
    assert handle.startswith(NAMESPACE)
