"""Jobs inside a job of Base Command, on a stand-in for bcprun."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.platforms.executors.harness import (
    Harness,
    bash,
    inside_base_command,
    machine_of_its_own,
)

from meshwright.platforms.base_command.allocation import (
    Allocation,
    BcprunExecutor,
    allocation_here,
)
from meshwright.platforms.job import Mount
from meshwright.values.errors import ConfigError, LauncherError

RANKS = 'echo "rank $RANK of $WORLD_SIZE on $LOCAL_RANK"; echo "$TOLD"'


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with inside_base_command(tmp_path, nodes=2, gpus=4), machine_of_its_own(tmp_path):
        yield Harness(make=BcprunExecutor, folder=tmp_path)


def test_every_rank_of_every_node_runs(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(
        "import os\nprint('rank', os.environ['RANK'], os.environ['LOCAL_RANK'], flush=True)\n"
    )
    job = replace(bash("true"), command=(str(tmp_path / "rank.py"),), runs_on="rank", nodes=2)
    handle = harness.submit(replace(job, gpus_per_node=4))
    assert harness.end(handle)[handle].state == "succeeded"
    said = sorted((harness.folder / "run 1" / "stdout.log").read_text().splitlines())
    assert said == [f"rank {rank} {rank % 4}" for rank in range(8)]


def test_the_code_is_that_of_the_rank_that_failed(harness: Harness) -> None:
    handle = harness.submit(replace(bash('[ "$RANK" = 0 ] || exit 7'), nodes=2))
    status = harness.end(handle)[handle]
    assert (status.state, status.exit_code) == ("failed", 7)


def test_secrets_reach_every_node(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a b$c")
    handle = harness.submit(
        replace(bash('echo "$WANDB_API_KEY"'), nodes=2, secrets=("WANDB_API_KEY",))
    )
    harness.end(handle)
    assert (harness.folder / "run 1" / "stdout.log").read_text() == "a b$c\na b$c\n"
    assert "a b$c" not in (harness.folder / "run 1" / "job" / "job.sh").read_text()


def test_no_more_nodes_than_there_are(harness: Harness) -> None:
    with pytest.raises(ConfigError, match="wants 3 nodes of 1 GPUs, and this job has 2 of 4"):
        harness.executor.slots(replace(bash("true"), nodes=3))


def test_the_image_and_mounts_are_those_of_the_job_that_we_are_in(harness: Harness) -> None:
    asked = replace(bash("true"), image="other:1", mounts=(Mount(source="/a", target="/a"),))
    handle = harness.submit(asked)
    assert harness.end(handle)[handle].state == "succeeded"


def test_outside_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NGC_ARRAY_SIZE", raising=False)
    with pytest.raises(LauncherError, match="bcprun: NGC_ARRAY_SIZE is not set or bcprun is not"):
        BcprunExecutor().check()
    with pytest.raises(ConfigError, match="--launcher bcp sends one"):
        BcprunExecutor().slots(bash("true"))


def test_where_we_are(tmp_path: Path) -> None:
    (tmp_path / "bcprun").write_text("")
    (tmp_path / "bcprun").chmod(0o755)
    path = {"PATH": str(tmp_path)}
    assert allocation_here({**path, "NGC_ARRAY_SIZE": "8"}) == Allocation(
        nodes=8, gpus_per_node=None
    )
    assert allocation_here(path) is None
    assert allocation_here({"NGC_ARRAY_SIZE": "8", "PATH": "/nowhere"}) is None


def test_a_rank_knows_its_node(harness: Harness, tmp_path: Path) -> None:
    """PyTorch Lightning makes the rank of it: node times GPUs, and the place on the node."""
    (tmp_path / "rank.py").write_text(
        "import os\nprint(*(os.environ[name] for name in ('RANK', 'NODE_RANK')), flush=True)\n"
    )
    job = replace(bash("true"), command=(str(tmp_path / "rank.py"),), runs_on="rank", nodes=2)
    harness.end(harness.submit(replace(job, gpus_per_node=3)))
    said = sorted((harness.folder / "run 1" / "stdout.log").read_text().splitlines())
    assert said == ["0 0", "1 0", "2 0", "3 1", "4 1", "5 1"]
