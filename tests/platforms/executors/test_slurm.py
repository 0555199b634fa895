"""What is peculiar to Slurm, on a real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.platforms.examples import NASTY
from tests.platforms.executors.harness import TIMEOUT_S, Harness, bash, programs, wait_for
from tests.slurm import ACCOUNTING, DAEMONS, Cluster, require_slurm, running_slurm

from meshwright.platforms.executor import JobStatus
from meshwright.platforms.slurm.executor import (
    STATES,
    ArrayRun,
    SlurmExecutor,
    SlurmOptions,
    status_of_sacct,
    status_of_squeue,
)
from meshwright.values.errors import ConfigError, LauncherError, LauncherSilent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_slurm()
    with running_slurm(tmp_path_factory.mktemp("slurm") / "cluster") as started:
        yield started


@pytest.fixture
def harness(cluster: Cluster, tmp_path: Path) -> Iterator[Harness]:
    yield Harness(make=SlurmExecutor, folder=tmp_path)
    cluster.ask("scancel", "--user=root", f"--user={os.getuid()}")


def held(harness: Harness, *words: str) -> str:
    return harness.submit(replace(bash("sleep 300"), words=words))


def test_an_exit_by_a_signal(harness: Harness) -> None:
    handle = harness.submit(bash("kill -SEGV $$"))
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code) == ("failed", 139)


def test_words_of_the_user_reach_slurm(cluster: Cluster, harness: Harness) -> None:
    options = SlurmOptions(
        account="team",
        partition="gpu",
        time_limit_s=1800,
        words=("--comment=from-options", "--hold"),
    )
    directory, label = harness.place()
    handle = SlurmExecutor(options).submit(
        replace(bash("true"), words=("--nice=7",)), directory=directory, label=label
    )
    shown = cluster.ask("scontrol", "show", "job", handle)
    for expected in (
        f"JobName={label}",
        "Account=team",
        "Partition=gpu",
        "TimeLimit=00:30:00",
        "Comment=from-options",
        "Nice=7",
        "JobHeldUser",
    ):
        assert expected in shown
    assert f"StdErr={directory}/stderr.log" in shown
    SlurmExecutor().cancel(handle)
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code, status.started_s, status.nodes) == (
        "cancelled",
        None,
        None,
        (),
    )


def test_a_container_by_the_options(harness: Harness, tmp_path: Path) -> None:
    """Apptainer stands in for itself: its words, up to the image, are what the program is run
    with."""
    shown = '#!/bin/bash\nwhile [[ $1 != *.sif ]]; do shift; done\necho "in $1"; shift; exec "$@"\n'
    directory, label = harness.place()
    with programs(tmp_path, "apptainer", text=shown):
        handle = SlurmExecutor(SlurmOptions(image="/images/a b.sif")).submit(
            bash("echo run"), directory=directory, label=label
        )
        assert harness.end(handle)[handle].state == "succeeded"
    assert (directory / "stdout.log").read_text() == "in /images/a b.sif\nrun\n"


def test_what_a_job_says_goes_before_the_options(cluster: Cluster, harness: Harness) -> None:
    directory, label = harness.place()
    job = replace(bash("true"), words=("--hold",), time_limit_s=600)
    handle = SlurmExecutor(SlurmOptions(time_limit_s=1800)).submit(
        job, directory=directory, label=label
    )
    assert "TimeLimit=00:10:00" in cluster.ask("scontrol", "show", "job", handle)


@pytest.mark.parametrize(
    ("word", "reason"),
    [("--hold", "JobHeldUser"), ("--begin=now+1hour", "BeginTime"), ("--nodes=4", "Resources")],
)
def test_a_queue_that_does_not_start_it(harness: Harness, word: str, reason: str) -> None:
    """It stays queued, and Slurm's own reason says why."""
    blocker = held(harness, "--nodelist=n1")
    harness.wait(blocker, "running")
    assert_waits(harness, held(harness, word), reason)
    harness.executor.cancel(blocker)


def assert_waits(harness: Harness, handle: str, reason: str) -> None:
    end = time.monotonic() + TIMEOUT_S
    while (status := harness.status(handle)).reason != reason and time.monotonic() < end:
        time.sleep(0.3)
    assert (status.state, status.reason, status.started_s, status.nodes) == (
        "queued",
        reason,
        None,
        (),
    )


def test_a_partition_that_is_down(cluster: Cluster, harness: Harness) -> None:
    cluster.ask("scontrol", "update", "partition=gpu", "state=down")
    try:
        assert_waits(harness, held(harness), "PartitionDown")
    finally:
        cluster.ask("scontrol", "update", "partition=gpu", "state=up")


def test_a_dependency_that_failed(harness: Harness) -> None:
    failed = harness.submit(bash("exit 3"))
    harness.end(failed)
    handle = held(harness, f"--dependency=afterok:{failed}")
    status = harness.end(handle)[handle]
    assert (status.state, status.reason) == ("never_started", "CANCELLED: DependencyNeverSatisfied")


def test_a_node_that_fails(cluster: Cluster, harness: Harness) -> None:
    """Slurm puts the job back into the queue, unless it was told not to."""
    lost, again = (
        held(harness, "--nodelist=n2", "--no-requeue"),
        held(harness, "--nodelist=n3", "--requeue"),
    )
    wait_for(harness.executor, [lost, again], ["running"])
    cluster.ask("scontrol", "update", "nodename=n2,n3", "state=down", "reason=test")
    try:
        status = harness.end(lost)[lost]
        assert (status.state, status.nodes) == ("node_failed", ("n2",))
        assert "NodeDown" in status.reason
        assert harness.wait(again, "queued").nodes == ()
    finally:
        cluster.ask("scontrol", "update", "nodename=n2,n3", "state=resume")


def test_requeue_starts_anew(cluster: Cluster, harness: Harness) -> None:
    """The log is that of the last attempt alone."""
    directory, label = harness.place()
    executor = SlurmExecutor()
    line = (
        'echo "attempt ${SLURM_RESTART_COUNT:-0}"; [[ ${SLURM_RESTART_COUNT:-0} == 1 ]] ||'
        " sleep 300"
    )
    handle = executor.submit(bash(line), directory=directory, label=label)
    harness.wait(handle, "running")
    end = time.monotonic() + TIMEOUT_S
    log = directory / "stdout.log"
    while not (log.exists() and log.read_text() == "attempt 0\n") and time.monotonic() < end:
        time.sleep(0.2)
    executor.requeue(handle)
    harness.wait(handle, "queued")
    time.sleep(5)  # what Slurm still sends to the first attempt would end the second
    cluster.ask(
        "scontrol", "update", f"jobid={handle}", "StartTime=now"
    )  # a requeued job waits two minutes otherwise
    status = harness.end(handle)[handle]
    assert status.state == "succeeded", f"{status}: {(directory / 'stderr.log').read_text()}"
    assert (directory / "stdout.log").read_text() == "attempt 1\n"


def test_an_array(cluster: Cluster, harness: Harness) -> None:
    executor = SlurmExecutor(SlurmOptions(array_at_once=2))
    places = [harness.place() for _ in range(3)]
    runs = [
        ArrayRun(job=bash(f'echo "{number}" "$#"; exit {number}'), directory=directory, label=label)
        for number, (directory, label) in enumerate(places)
    ]
    handles = executor.submit_array(
        runs, directory=harness.folder / "array", label="array-of-three"
    )
    assert [re.sub(r"\d+_", "", handle) for handle in handles] == ["0", "1", "2"]
    assert "ArrayTaskThrottle=2" in cluster.ask("scontrol", "show", "job", handles[2])
    assert [status.exit_code for status in harness.end(*handles).values()] == [0, 1, 2]
    for number, (directory, label) in enumerate(places):
        assert (directory / "stdout.log").read_text() == f"{number} {len(NASTY)}\n"
        assert SlurmExecutor().find(label, directory=directory) == handles[number]


def test_one_task_of_an_array_is_cancelled(harness: Harness) -> None:
    runs = [
        ArrayRun(job=bash("sleep 300"), directory=directory, label=label)
        for directory, label in (harness.place(), harness.place())
    ]
    handles = SlurmExecutor().submit_array(
        runs, directory=harness.folder / "array", label="array-of-two"
    )
    wait_for(harness.executor, handles, ["running"])
    harness.executor.cancel(handles[0])
    assert harness.end(handles[0])[handles[0]].state == "cancelled"
    assert harness.status(handles[1]).state == "running"


def test_tasks_of_an_array_ask_for_the_same(tmp_path: Path) -> None:
    runs = [
        ArrayRun(job=replace(bash("a"), nodes=n), directory=tmp_path / str(n), label=f"a-{n}")
        for n in (1, 2)
    ]
    with pytest.raises(
        ConfigError,
        match="tasks of an array ask for the same, and a-2 differs from a-1 in --nodes=2",
    ):
        SlurmExecutor().submit_array(runs, directory=tmp_path, label="a")


def test_found_by_its_name_where_sbatch_died_too(harness: Harness) -> None:
    directory, label = harness.place()
    handle = harness.executor.submit(bash("true"), directory=directory, label=label)
    (directory / "job" / "sbatch.out").unlink()
    assert SlurmExecutor().find(label, directory=directory) == handle


def test_a_tuner_that_is_killed_while_sbatch_runs(
    cluster: Cluster, harness: Harness, tmp_path: Path
) -> None:
    """sbatch goes on and writes the number down itself."""
    directory, label = harness.place()
    begun = tmp_path / "begun"
    slow = (
        f"#!/bin/bash\ntouch {begun}; sleep 5; exec $(PATH={os.environ['PATH']} type -P sbatch)"
        ' "$@"\n'
    )
    code = (
        "import sys; from pathlib import Path;"
        " from meshwright.platforms.slurm.executor import SlurmExecutor;"
        " from meshwright.platforms.job import Job; SlurmExecutor().submit(Job(name='a',"
        " command=('true',), nodes=1, gpus_per_node=1, runs_on='node'),"
        " directory=Path(sys.argv[1]), label=sys.argv[2])"
    )
    with programs(tmp_path, "sbatch", text=slow):
        tuner = subprocess.Popen([sys.executable, "-c", code, str(directory), label])
        while not begun.exists():
            time.sleep(0.05)
        tuner.kill()
        tuner.wait()
    assert SlurmExecutor().find(label, directory=directory) is None
    end = time.monotonic() + TIMEOUT_S
    while (
        handle := SlurmExecutor().find(label, directory=directory)
    ) is None and time.monotonic() < end:
        time.sleep(0.2)
    assert handle is not None
    assert harness.end(handle)[handle].state == "succeeded"


def test_inside_a_job_of_slurm(
    cluster: Cluster, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of the tuner's own job don't leak into the commands."""
    for name, value in (
        ("SLURM_NTASKS", "64"),
        ("SLURM_NNODES", "9"),
        ("SQUEUE_FORMAT", "%i"),
        ("SQUEUE_STATES", "PENDING"),
        ("SLURM_TIME_FORMAT", "%c"),
    ):
        monkeypatch.setenv(name, value)
    handle = harness.submit(bash("exit 2"))
    status = harness.end(handle)[handle]
    assert status.exit_code == 2
    assert status.ended_s is not None


def test_sbatch_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LauncherError, match="slurm: sbatch is not there: start from a login node"):
        SlurmExecutor().check()
    with pytest.raises(LauncherError, match="slurm: sbatch is not there"):
        SlurmExecutor().submit(bash("true"), directory=tmp_path, label="a-1")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--partition=none", "Invalid partition"),
        ("--reservation=none", "reservation is invalid"),
        ("--nonsense", "--help"),
    ],
)
def test_slurm_refuses(harness: Harness, word: str, said: str) -> None:
    directory, label = harness.place()
    with pytest.raises(LauncherError, match=f"slurm: sbatch refuses {label}: .*{said}"):
        harness.executor.submit(
            replace(bash("true"), words=(word,)), directory=directory, label=label
        )
    assert harness.executor.find(label, directory=directory) is None


def test_a_controller_that_does_not_answer(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = Path(os.environ["SLURM_CONF"]).read_text()
    (tmp_path / "slurm.conf").write_text(
        re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1\nMessageTimeout=1", conf)
    )
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    executor = SlurmExecutor(SlurmOptions(patience_s=3))
    with pytest.raises(LauncherSilent):
        executor.check()
    with pytest.raises(LauncherSilent):
        executor.poll(["1"])


def test_log_dir_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leave log_dir out"):
        SlurmExecutor().submit(
            replace(bash("true"), log_dir="logs"), directory=tmp_path, label="a-1"
        )


@pytest.mark.parametrize("handle", ["", "a", "1.2", "1;x", "_1", "--help"])
def test_what_is_no_handle(handle: str) -> None:
    for call in (lambda: SlurmExecutor().poll([handle]), lambda: SlurmExecutor().cancel(handle)):
        with pytest.raises(LauncherError, match="no number of a job"):
            call()


def test_every_state_has_a_row() -> None:
    """Codes and times of squeue (a wait status) and sacct (CODE:SIGNAL) read the same."""
    squeue = ["1", "FAILED", "NonZeroExitCode", "100", "200", "n1", str(7 << 8)]
    sacct = ["1", "FAILED", "None", "100", "200", "n1", "7:0"]
    expected = JobStatus(
        state="failed", exit_code=7, reason="FAILED", started_s=100, ended_s=200, nodes=("n1",)
    )
    assert status_of_sacct(sacct, ("n1",)) == expected
    assert status_of_squeue(squeue, ("n1",)) == replace(expected, reason="FAILED: NonZeroExitCode")
    assert status_of_squeue([*squeue[:6], "9"], ("n1",)).exit_code == 137
    assert status_of_sacct([*sacct[:6], "0:9"], ("n1",)).exit_code == 137
    for word, state in STATES.items():
        assert (
            status_of_sacct(["1", word, "None", "100", "200", "n1", "0:0"], ("n1",)).state == state
        )
    assert (
        status_of_sacct(["1", "SHINY_NEW", "None", "100", "200", "n1", "0:0"], ("n1",)).state
        == "unknown"
    )
    assert (
        status_of_sacct(["1", "DEADLINE", "None", "Unknown", "200", "", "0:0"], ()).state
        == "never_started"
    )
    timed_out = status_of_sacct(["1", "TIMEOUT", "None", "100", "200", "n1", "0:0"], ("n1",))
    assert (timed_out.state, timed_out.exit_code) == ("timed_out", None)


@pytest.fixture(scope="module")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_slurm((*DAEMONS, *ACCOUNTING))
    with running_slurm(
        tmp_path_factory.mktemp("accounted") / "cluster", accounting=True
    ) as started:
        yield started


def test_accounting_remembers_what_the_controller_has_forgotten(
    accounted: Cluster, tmp_path: Path
) -> None:
    harness = Harness(make=SlurmExecutor, folder=tmp_path)
    places = [harness.place() for _ in range(3)]
    jobs = [bash("exit 5"), bash("sleep 300"), replace(bash("true"), nodes=2)]
    handles = [
        harness.executor.submit(job, directory=directory, label=label)
        for job, (directory, label) in zip(jobs, places, strict=True)
    ]
    harness.wait(handles[1], "running")
    harness.executor.cancel(handles[1])
    harness.end(*handles)
    end = time.monotonic() + TIMEOUT_S
    while accounted.ask("squeue", "-h", "--states=all") and time.monotonic() < end:
        time.sleep(0.5)
    found = SlurmExecutor().poll(handles)
    assert [(status.state, status.exit_code) for status in found.values()] == [
        ("failed", 5),
        ("cancelled", None),
        ("succeeded", 0),
    ]
    assert found[handles[1]].reason == f"CANCELLED by {os.getuid()}"
    assert len(found[handles[2]].nodes) == 2
    assert all(status.started_s and status.ended_s for status in found.values())
    directory, label = places[0]
    (directory / "job" / "sbatch.out").unlink()
    assert SlurmExecutor().find(label, directory=directory) == handles[0]
    assert SlurmExecutor().poll(["99999"])["99999"].reason == "Slurm knows no job 99999"
