"""What runs on each node: it is started as text by bash, with stand-ins for the programs around
it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.platforms.examples import NASTY

from meshwright.platforms.job import Job
from meshwright.platforms.shell import Copy, on_nodes
from meshwright.software.contract import ExportedFile

PROGRAM = Job(
    name="step",
    command=("bash", "-c", "echo out; echo err >&2; exit 5"),
    nodes=2,
    gpus_per_node=1,
    runs_on="node",
)
RSYNC = '#!/bin/bash\nprintf "%s\\n" "$*" >> "$CALLS"\n'


def surroundings(folder: Path, *, rank: int) -> dict[str, str]:
    for name, text in (("rsync", RSYNC), ("torchrun", '#!/bin/bash\nprintf "<%s>\\n" "$@"\n')):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "NODE_RANK": str(rank),
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }
    return {**env, "CALLS": str(folder / "calls")}


def run(job: Job, folder: Path, *, rank: int = 0) -> tuple[int, str]:
    """Return exit code and output; nothing may be said on stderr."""
    done = subprocess.run(
        job.command, env=surroundings(folder, rank=rank), capture_output=True, check=False
    )
    assert done.stderr == b""
    return done.returncode, done.stdout.decode()


def test_each_node_has_its_log_and_the_code_is_the_programs(tmp_path: Path) -> None:
    """Behind a `tee` without pipefail the code would be 0; with one log for all, lines of replicas
    would be torn."""
    job = on_nodes(PROGRAM, logs=str(tmp_path / "my logs"))
    for rank in (0, 1):
        assert run(job, tmp_path, rank=rank) == (5, "out\nerr\n")
        assert (tmp_path / "my logs" / f"replica-{rank}.log").read_text() == "out\nerr\n"


def test_results_are_copied_by_the_first_node_once_also_after_a_failure(tmp_path: Path) -> None:
    copy = Copy(source="/made here", target="/results", exclude=("checkpoints/",))
    job = on_nodes(PROGRAM, logs=str(tmp_path), copy=copy)
    assert [run(job, tmp_path, rank=rank)[0] for rank in (1, 0)] == [5, 5]
    assert (
        tmp_path / "calls"
    ).read_text() == "-a --exclude=checkpoints/ -- /made here/ /results/\n"


@pytest.mark.parametrize(
    ("needs", "programs", "found"),
    [(("/tmp", "/no $such"), (), "/no $such"), ((), ("bash", "no-such"), "no-such")],
)
def test_what_is_absent_ends_it_before_the_start(
    needs: tuple[str, ...], programs: tuple[str, ...], found: str, tmp_path: Path
) -> None:
    code, out = run(on_nodes(PROGRAM, logs=str(tmp_path), needs=needs, programs=programs), tmp_path)
    assert code == 2
    assert out.startswith("step: ")
    assert found in out
    assert "out" not in out.split()


def test_a_signal_reaches_the_program(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('up',"
        " flush=True)\ntime.sleep(60)"
    )
    job = on_nodes(replace(PROGRAM, command=("python3", "-c", program)), logs=str(tmp_path))
    with subprocess.Popen(
        job.command, env=surroundings(tmp_path, rank=0), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 7


def test_a_program_for_ranks_is_started_by_torchrun_beside_its_files(tmp_path: Path) -> None:
    file = ExportedFile(name="sub/a.yaml", text="".join(NASTY))
    ranks = Job(
        name="test-node-script",
        command=("train.py", *NASTY),
        nodes=2,
        gpus_per_node=8,
        files=(file,),
    )
    code, out = run(on_nodes(ranks, logs=str(tmp_path)), tmp_path, rank=1)
    torchrun = [
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=a",
        "--master-port=1",
        "--nproc-per-node=8",
    ]
    assert code == 0
    assert out == "".join(f"<{word}>\n" for word in [*torchrun, "train.py", *NASTY])
    assert Path("/tmp/test-node-script/sub/a.yaml").read_bytes().decode() == file.text
    shutil.rmtree("/tmp/test-node-script")
