"""A chain of jobs on a Slurm of the tests, with a torchrun that prints what the embedded trainer
prints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runs.training.standin import put_torchrun
from tests.slurm import Cluster, require_slurm, running_slurm

from meshwright import cli

pytestmark = pytest.mark.slow

TIMEOUT_S = 120
TWO_JOBS = [
    *(
        "train",
        "tiny-llama",
        "--cluster",
        "local:1",
        "--layout",
        "mbs=1",
        "--launcher",
        "slurm",
        "--steps",
        "30",
    ),
    *("--time", "2m", "--save-margin", "108s", "--jobs", "2", "-o", "run"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_slurm()
    with running_slurm(tmp_path_factory.mktemp("slurm") / "cluster") as running:
        yield running


def state(folder: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert cli.run(["train", "status", folder, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def wait_for_end(folder: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        jobs = state(folder, capsys)["jobs"]
        assert isinstance(jobs, list)
        states = [job["status"]["state"] for job in jobs]
        if not set(states) & {"queued", "running"}:
            return states
        time.sleep(0.5)
    raise AssertionError(states)


def test_two_jobs_in_a_row_then_the_same_command(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_torchrun(tmp_path, monkeypatch)
    monkeypatch.setenv("STEPS_A_JOB", "12")
    # Predicted are about 20 s: two jobs of 12 s of steps each are sent at once.
    assert cli.run(TWO_JOBS) == 0
    assert capsys.readouterr().err.count(" was sent: mw-") == 2
    assert wait_for_end("run", capsys) == ["succeeded", "succeeded"]
    script = Path("run/jobs/2/job/job.sbatch").read_text()
    assert "#SBATCH --time=0-00:02:00\n" in script
    assert "#SBATCH --dependency=afterok:" in script
    assert "minutes=0.2" in script
    second = [
        json.loads(line)["step"] for line in Path("run/jobs/2/stdout.log").read_text().splitlines()
    ]
    assert second == list(range(13, 25)), "it goes on where the first one stopped"
    assert cli.run(["train", "run", "--jobs", "1"]) == 0
    assert wait_for_end("run", capsys) == ["succeeded"] * 3
    found = state("run", capsys)
    assert (found["done_steps"], found["saved_steps"]) == (30, 30)
    assert cli.run(["train", "run"]) == 0
    assert "step 30 of 30 is done; nothing is sent" in capsys.readouterr().err


def test_a_failure_drops_what_waits_behind_it(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_torchrun(tmp_path, monkeypatch)
    monkeypatch.setenv("FAILS", "not today")
    assert cli.run(TWO_JOBS) == 0
    states = wait_for_end("run", capsys)
    assert states[0] == "failed"
    assert states[1] in ("never_started", "cancelled")
