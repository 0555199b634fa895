"""Our batch scripts on a real Slurm: four nodes of eight chips, all of them on this machine, the
chips being devices of no use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.platforms.examples import LARGE, NASTY, SMALL
from tests.slurm import Cluster, require_slurm

from meshwright.platforms.job import Job
from meshwright.platforms.registry import job_text
from meshwright.software.contract import EnvVar

TORCHRUN = """#!{python}
import json, os, sys
place = next(n for n, word in enumerate(sys.argv[1:], 1) if not word.startswith("--"))
known = dict(word[2:].split("=", 1) for word in sys.argv[1:place])
call = {{"argv": sys.argv[place:], "known": known, "odd": os.environ["ODD_VALUE"], "chips": os.environ.get("CUDA_VISIBLE_DEVICES")}}
open(os.path.join(os.environ["SEEN"], known["node-rank"] + ".json"), "w").write(json.dumps(call))
"""  # noqa: E501
RANK = """#!{python}
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")
call = {{"argv": sys.argv[1:], "env": {{name: os.environ[name] for name in names}}, "odd": os.environ["ODD_VALUE"]}}
open(os.path.join(os.environ["SEEN"], os.environ["RANK"] + ".json"), "w").write(json.dumps(call))
"""  # noqa: E501


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_slurm()
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
    return replace(
        LARGE, name=name, nodes=nodes, command=("train.py", *NASTY), environment=environment
    )


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
    assert {(one["nnodes"], one["nproc-per-node"], one["master-addr"]) for one in known} == {  # type: ignore[index]
        (str(nodes), "8", "n1")
    }
    assert len({one["master-port"] for one in known}) == 1  # type: ignore[index]


def test_srun_starts_one_process_per_chip(cluster: Cluster) -> None:
    seen = cluster.run(replace(job("per-chip", nodes=4), launch="ranks"))
    assert len(seen) == 32
    assert all(
        call["argv"] == ["-u", "train.py", *NASTY] and call["odd"] == "".join(NASTY)
        for call in seen
    )
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
        SMALL,
        name="directives",
        time_limit_s=4 * 86400 + 23 * 3600 + 30 * 60,
        partition="gpu",
        log_dir=str(folder),
        words=words,
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
    failing = replace(
        job("failing", nodes=4),
        command=("bash", "-c", "exit $((SLURM_NODEID == 2 ? 7 : 0))"),
        runs_on="node",
    )
    (cluster.folder / "failing.sbatch").write_text(job_text(failing, launcher="slurm").text)
    done = subprocess.run(
        ["sbatch", "--wait", "failing.sbatch"],
        env=cluster.env,
        cwd=cluster.folder,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode != 0, "its own code, or that of a task that was ended because of it"
