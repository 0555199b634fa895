"""Our batch scripts on a real Slurm: four nodes of eight chips, all of them on this machine, the chips being devices of no use."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.exports.jobs.examples import LARGE, NASTY, SMALL

from meshwright.exports import EnvVar
from meshwright.exports.jobs import Job, job_text

DAEMONS = ("munged", "slurmctld", "slurmd")
TIMEOUT_S = 60
TORCHRUN = """#!{python}
import json, os, sys
place = next(n for n, word in enumerate(sys.argv[1:], 1) if not word.startswith("--"))
known = dict(word[2:].split("=", 1) for word in sys.argv[1:place])
call = {{"argv": sys.argv[place:], "known": known, "odd": os.environ["ODD_VALUE"], "chips": os.environ.get("CUDA_VISIBLE_DEVICES")}}
open(os.path.join(os.environ["SEEN"], known["node-rank"] + ".json"), "w").write(json.dumps(call))
"""
RANK = """#!{python}
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")
call = {{"argv": sys.argv[1:], "env": {{name: os.environ[name] for name in names}}, "odd": os.environ["ODD_VALUE"]}}
open(os.path.join(os.environ["SEEN"], os.environ["RANK"] + ".json"), "w").write(json.dumps(call))
"""
CONF = """
ClusterName=jobs
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/ctld.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/d-%n.pid
SlurmdLogFile={folder}/d-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=1
GresTypes=gpu
ReturnToService=2
KillWait=2
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=16 RealMemory=1000 Gres=gpu:8
PartitionName=gpu Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> int:
    """Return the first of some free ports in a row."""
    for first in range(17000, 30000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def wait_for(what: str, found: object) -> None:
    """Wait until a function says yes."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        if found():  # type: ignore[operator]
            return
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {TIMEOUT_S} s")


class Cluster:
    """A Slurm of our own, apart from any other on this machine."""

    def __init__(self, folder: Path) -> None:
        """Start it."""
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        first, host = free_ports(5), socket.gethostname().partition(".")[0]
        conf = CONF.format(folder=folder, host=host, user=getpass.getuser(), port=first, first=first + 1, last=first + 4)
        (folder / "slurm.conf").write_text(conf)
        (folder / "gres.conf").write_text("NodeName=n[1-4] Name=gpu File=/dev/tty1[0-7]\n")
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        (folder / "state").mkdir()
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "SEEN": str(folder / "seen")}
        self.env["PATH"] = f"{folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        munge = {"key-file": "key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        self.start("munged", "-F", "-f", *(f"--{name}={folder / file}" for name, file in munge.items()))
        wait_for("munged", (folder / "munge.socket").exists)
        self.start("slurmctld", "-D", "-c")
        for number in range(1, 5):
            self.start("slurmd", "-D", "-N", f"n{number}")
        wait_for("nodes", lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 4")

    def start(self, *words: str) -> None:
        """Start a daemon."""
        log = (self.folder / f"{words[0]}.out").open("ab")
        self.processes.append(subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        log.close()

    def ask(self, *words: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(words, env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()

    def run(self, job: Job) -> list[dict[str, object]]:
        """Run a job, and return what its processes saw in the order of their numbers."""
        text = job_text(job, launcher="slurm")
        seen = self.folder / "seen"
        shutil.rmtree(seen, ignore_errors=True)
        seen.mkdir()
        (self.folder / text.file_name).write_text(text.text)
        answer = self.ask("sbatch", "--wait", "--parsable", text.file_name)
        assert answer.isdecimal(), f"{answer}\n{''.join(path.read_text() for path in self.folder.glob('*.log') if job.name in path.name)}"
        return [json.loads(path.read_text()) for path in sorted(seen.iterdir(), key=lambda path: int(path.stem))]

    def stop(self) -> None:
        """End every daemon."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    absent = [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if absent:
        pytest.skip(f"{', '.join(absent)} not installed: apt-get install slurmctld slurmd slurm-client munge")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "bin").mkdir()
    for name, text in (("torchrun", TORCHRUN), ("python3", RANK)):
        (folder / "bin" / name).write_text(text.format(python=sys.executable))
        (folder / "bin" / name).chmod(0o755)
    started = Cluster(folder)
    yield started
    started.stop()


def job(name: str, *, nodes: int) -> Job:
    environment = (EnvVar(name="ODD_VALUE", value="".join(NASTY), why="a test"),)
    return replace(LARGE, name=name, nodes=nodes, command=("train.py", *NASTY), environment=environment)


@pytest.mark.parametrize("nodes", [1, 4])
def test_torchrun_runs_once_on_each_node(cluster: Cluster, nodes: int) -> None:
    seen = cluster.run(job(f"per-node-{nodes}", nodes=nodes))
    assert len(seen) == nodes
    for call in seen:
        assert call["argv"] == ["train.py", *NASTY]
        assert call["odd"] == "".join(NASTY)
        assert call["chips"] == "0,1,2,3,4,5,6,7"
    known = [call["known"] for call in seen]
    assert [one["node-rank"] for one in known] == [str(number) for number in range(nodes)]  # type: ignore[index]
    assert {(one["nnodes"], one["nproc-per-node"], one["master-addr"]) for one in known} == {(str(nodes), "8", "n1")}  # type: ignore[index]
    assert len({one["master-port"] for one in known}) == 1  # type: ignore[index]


def test_srun_starts_one_process_per_chip(cluster: Cluster) -> None:
    seen = cluster.run(replace(job("per-chip", nodes=4), launch="ranks"))
    assert len(seen) == 32
    assert all(call["argv"] == ["-u", "train.py", *NASTY] and call["odd"] == "".join(NASTY) for call in seen)
    found = [call["env"] for call in seen]
    for rank, env in enumerate(found):
        assert env["LOCAL_RANK"] == str(rank % 8)  # type: ignore[index]
        assert env["SLURMD_NODENAME"] == f"n{rank // 8 + 1}"  # type: ignore[index]
        assert (env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("32", "n1")  # type: ignore[index]


def test_slurm_reads_directives_as_they_were_meant(cluster: Cluster) -> None:
    """A limit, a folder of logs with blanks and quotes, and options of the user's own."""
    folder = cluster.folder / "my 'logs' #1"
    folder.mkdir()
    words = ("--comment=by-hand", "--hold")
    wanted = replace(
        SMALL, name="directives", time_limit_s=4 * 86400 + 23 * 3600 + 30 * 60, partition="gpu", log_dir=str(folder), words=words
    )
    (cluster.folder / "directives.sbatch").write_text(job_text(wanted, launcher="slurm").text)
    number = cluster.ask("sbatch", "--parsable", "directives.sbatch")
    shown = cluster.ask("scontrol", "show", "job", number)
    cluster.ask("scancel", number)
    assert "TimeLimit=4-23:30:00" in shown
    assert "Partition=gpu" in shown
    assert f"StdOut={folder}/directives-{number}.log" in shown
    assert "Comment=by-hand" in shown
    assert "NumNodes=1-1" in shown or "NumNodes=1" in shown


def test_slurm_would_start_it(cluster: Cluster) -> None:
    (cluster.folder / "dry.sbatch").write_text(job_text(SMALL, launcher="slurm").text)
    assert "to start at" in cluster.ask("bash", "-c", "sbatch --test-only dry.sbatch 2>&1")


def test_a_failing_node_ends_the_job(cluster: Cluster) -> None:
    failing = replace(job("failing", nodes=4), command=("bash", "-c", "exit $((SLURM_NODEID == 2 ? 7 : 0))"), runs_on="node")
    (cluster.folder / "failing.sbatch").write_text(job_text(failing, launcher="slurm").text)
    done = subprocess.run(
        ["sbatch", "--wait", "failing.sbatch"], env=cluster.env, cwd=cluster.folder, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode != 0, "its own code, or that of a task that was ended because of it"
