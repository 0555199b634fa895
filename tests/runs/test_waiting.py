from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.platforms.executors.harness import bash
from tests.runs.test_outcome import WORK, ended, outcome, steps
from tests.slurm import Cluster, require_slurm, running_slurm

from meshwright.platforms.job import Job
from meshwright.platforms.slurm.executor import SlurmExecutor
from meshwright.runs import loop
from meshwright.runs.loop import judge_runs, suspect_runs
from meshwright.runs.outcome import Failure
from meshwright.runs.waiting import NameReader, said_of_silence

RUNNING = ended(state="running", exit_code=None)


def asked(*seconds: int, name: str = "n7") -> str:
    """What torch writes each time that it asks for a name in vain."""
    return "".join(
        f"[W1123 09:{s // 60:02}:{s % 60:02}.584721511 socket.cpp:764] [c10d] The IPv6 network"
        f" addresses of ({name}, 23457) cannot be retrieved (gai error: -2 - Name or service not"
        " known).\n"
        for s in seconds
    )


def test_a_name_that_is_asked_for_in_vain_ends_the_run(tmp_path: Path) -> None:
    found = outcome(tmp_path, "", RUNNING, stderr=asked(0, 1, 4, 9, 15, 21), silent_s=2.0)
    assert isinstance(found, Failure) and found.failure_class == "unresolved_node"
    assert "node name n7 does not resolve" in found.message and "for 21 s" in found.message
    assert "09:00:21" in str(found.evidence)


@pytest.mark.parametrize(
    "text",
    [
        asked(0, 1),
        asked(0, 1, 2, 30, 31, 32),  # a second group of processes, as many seconds later
        asked(0, 1, 4, 9, 15, 21) + steps(40, 2),
        "".join(asked(second, name=f"n{second}") for second in range(0, 60, 5)),
    ],
)
def test_warnings_in_passing_end_nothing(tmp_path: Path, text: str) -> None:
    assert outcome(tmp_path, text, RUNNING, silent_s=2.0) is None


def test_midnight_does_not_matter() -> None:
    reader = NameReader()
    line = asked(0).replace("1123 09:00:00", "1123 23:59:{}")
    late = "".join(line.format(second) for second in (50, 55, 59))
    reader.feed(late + asked(6, 12).replace("1123 09:", "1124 00:"))
    found = reader.in_vain()
    assert found is not None and "for 22 s" in found[0]


def test_silence_is_said_before_it_is_a_hang() -> None:
    assert said_of_silence(44, 2.0, step=7) == ""
    assert "behind step 7" in said_of_silence(46, 2.0, step=7)
    assert said_of_silence(46, 30.0, step=7) == ""
    assert "behind step 7" in said_of_silence(151, 30.0, step=7)
    assert "before its first step" in said_of_silence(46, None, step=None)


HANGING = """
import sys, time, torch, torch.distributed as dist
sys.path.insert(0, {root!r})
from tests.software.logs.forms import megatron_line
dist.init_process_group("gloo")
for step in range(1, 9):
    if dist.get_rank() == 1 and step == 6:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        print(megatron_line(step, 200.0), end="", flush=True)
"""


@pytest.mark.slow
def test_a_rank_that_waits_for_ever_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real processes: one sleeps before step 6, so that the other waits in a collective."""
    pytest.importorskip("torch")
    monkeypatch.setattr("meshwright.runs.waiting.SAID_S", 5.0)
    monkeypatch.setattr(loop, "SAID_S", 5.0)
    program = tmp_path / "train.py"
    program.write_text(HANGING.format(root=str(Path(__file__).resolve().parents[2])))
    log = tmp_path / "stdout.log"
    words = ["torchrun", "--standalone", "--nproc-per-node=2", str(program)]
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words[1:]],
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
        try:
            said, end = "", time.monotonic() + 120
            while time.monotonic() < end and "behind step" not in said:
                time.sleep(0.5)
                said = suspect_runs(WORK)(tmp_path, time.time() - log.stat().st_mtime)
        finally:
            process.terminate()
            process.wait(60)
    assert "silent behind step 5: most likely ranks wait in a collective" in said


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_slurm()
    with running_slurm(tmp_path_factory.mktemp("slurm") / "cluster") as started:
        yield started


def rendezvous() -> Job:
    """Real processes on two nodes that meet at the first, n1, a name that nothing resolves here."""
    words = (
        f'exec {sys.executable} -m torch.distributed.run --nnodes=2 --node-rank="$SLURM_NODEID"'
        ' --nproc-per-node=1 --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" /dev/null'
    )
    return replace(bash(words), nodes=2)


@pytest.mark.slow
def test_slurm_s_node_without_an_address_is_said_within_a_minute(
    cluster: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    executor = SlurmExecutor()
    run = tmp_path / "run"
    run.mkdir()
    handle = executor.submit(rendezvous(), directory=run, label="unresolved")
    judge, started, found = judge_runs(WORK), None, None
    end = time.monotonic() + 150
    while time.monotonic() < end and found is None:
        time.sleep(1.0)
        status = executor.poll([handle])[handle]
        if status.state == "running":
            started = started or time.monotonic()
            found = judge(status, run, 0.0)
    executor.cancel(handle)
    assert isinstance(found, Failure) and started is not None, (run / "stderr.log").read_text()
    assert found.failure_class == "unresolved_node" and "node name n1 does" in found.message
    assert time.monotonic() - started < 60 or os.getloadavg()[0] > 4


@pytest.mark.slow
def test_a_job_that_slurm_lost_is_said_with_the_likely_cause(cluster: Cluster) -> None:
    """Without accounting the controller forgets a job, or never knew it."""
    reason = SlurmExecutor().poll(["99999"])["99999"].reason
    assert "Slurm knows no job 99999" in reason
