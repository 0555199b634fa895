"""A Slurm of our own for tests: four nodes of eight chips, all of them on this machine, the chips
being devices of no use."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshwright.platforms.job import Job
from meshwright.platforms.registry import job_text

DAEMONS = ("munged", "slurmctld", "slurmd")
ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db")
TIMEOUT_S = 180
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
{accounting}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=1
GresTypes=gpu
ReturnToService=2
KillWait=2
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=16 RealMemory=1000 Gres=gpu:8
PartitionName=gpu Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP
"""  # noqa: E501


NO_ACCOUNTING = "AccountingStorageType=accounting_storage/none"
WITH_ACCOUNTING = """AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
MinJobAge=2"""
DBD = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=root
StorageLoc=jobs
LogFile={folder}/dbd.log
PidFile={folder}/dbd.pid
"""


def require_slurm(daemons: tuple[str, ...] = DAEMONS) -> None:
    """Skip what needs a Slurm where none is installed."""
    absent = [
        name
        for name in daemons
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None
    ]
    if absent:
        packages = "slurmctld slurmd slurm-client munge" + (
            " slurmdbd mariadb-server" if daemons != DAEMONS else ""
        )
        pytest.skip(f"{', '.join(absent)} not installed: apt-get install {packages}")


def free_ports(count: int) -> int:
    """Return the first of some free ports in a row."""
    start = os.getpid() * count % 10000
    order: list[int] = [*range(17000 + start, 30000, count), *range(17000, 17000 + start, count)]
    for first in order:
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def answers(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as probe:
        return bool(probe.connect_ex(("127.0.0.1", port)) == 0)


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

    def __init__(self, folder: Path, *, accounting: bool = False) -> None:
        """Start it; with accounting it has a database, and the controller forgets jobs within
        seconds of their end."""
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        try:
            self._start(accounting=accounting)
        except BaseException:
            self.stop()
            raise

    def _start(self, *, accounting: bool) -> None:
        folder, first, host = self.folder, free_ports(7), socket.gethostname().partition(".")[0]
        database = (
            WITH_ACCOUNTING.format(port=first + 5, folder=folder) if accounting else NO_ACCOUNTING
        )
        values = {"folder": folder, "host": host, "user": getpass.getuser(), "accounting": database}
        (folder / "slurm.conf").write_text(
            CONF.format(**values, port=first, first=first + 1, last=first + 4)
        )
        (folder / "gres.conf").write_text("NodeName=n[1-4] Name=gpu File=/dev/tty1[0-7]\n")
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        (folder / "state").mkdir()
        self.env = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "SEEN": str(folder / "seen"),
        }
        self.env["PATH"] = f"{folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        munge = {
            "key-file": "key",
            "socket": "munge.socket",
            "pid-file": "munge.pid",
            "log-file": "munge.log",
            "seed-file": "munge.seed",
        }
        self.start(
            "munged", "-F", "-f", *(f"--{name}={folder / file}" for name, file in munge.items())
        )
        wait_for("munged", (folder / "munge.socket").exists)
        if accounting:
            self.start_accounting(first + 5, database=first + 6)
        self.start("slurmctld", "-D", "-c")
        for number in range(1, 5):
            self.start("slurmd", "-D", "-N", f"n{number}")
        wait_for("nodes", lambda: self.ask("sinfo", "-h", "-o", "%T %D") == "idle 4")

    def start_accounting(self, port: int, *, database: int) -> None:
        """Start a database and what writes jobs into it."""
        data, user = self.folder / "data", getpass.getuser()
        self.ask(
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            f"--user={user}",
            "--auth-root-authentication-method=normal",
        )
        places = [
            f"--datadir={data}",
            f"--socket={self.folder}/db.socket",
            f"--port={database}",
            "--bind-address=127.0.0.1",
        ]
        self.start("mariadbd", "--no-defaults", f"--user={user}", *places)
        wait_for("mariadbd", lambda: answers(database))
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(DBD.format(folder=self.folder, port=port, database=database, user=user))
        conf.chmod(0o600)
        self.start("slurmdbd", "-D")
        wait_for("slurmdbd", lambda: answers(port))
        self.ask("sacctmgr", "-i", "add", "cluster", "jobs")

    def start(self, *words: str) -> None:
        """Start a daemon."""
        log = (self.folder / f"{words[0]}.out").open("ab")
        self.processes.append(
            subprocess.Popen(words, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        )
        log.close()

    def ask(self, *words: str) -> str:
        """Return what a command prints."""
        done = subprocess.run(
            words,
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()

    def run(self, job: Job) -> list[dict[str, object]]:
        """Run a job, and return what its processes saw in the order of their numbers."""
        text = job_text(job, launcher="slurm")
        seen = self.folder / "seen"
        shutil.rmtree(seen, ignore_errors=True)
        seen.mkdir()
        (self.folder / text.file_name).write_text(text.text)
        answer = self.ask("sbatch", "--wait", "--parsable", text.file_name)
        assert answer.isdecimal(), (
            f"{answer}\n{''.join(path.read_text() for path in self.folder.glob('*.log') if job.name in path.name)}"  # noqa: E501
        )
        return [
            json.loads(path.read_text())
            for path in sorted(seen.iterdir(), key=lambda path: int(path.stem))
        ]

    def stop(self) -> None:
        """End every daemon."""
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # slurmd waits for its jobs
                process.kill()
                process.wait()


@contextmanager
def running_slurm(folder: Path, *, accounting: bool = False) -> Iterator[Cluster]:
    """Start a cluster, and let this process's commands speak with it."""
    folder.mkdir()
    cluster = Cluster(folder, accounting=accounting)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
            yield cluster
    finally:
        cluster.stop()
