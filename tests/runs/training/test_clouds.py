"""Run:ai, Lepton, SkyPilot and PAI-DLC on a stand-in with their words: sent, followed, ended,
gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.platforms.executors.harness import client_program
from tests.runs.training.standin import put_torchrun

from meshwright import cli
from meshwright.platforms.client import ClientOptions
from meshwright.platforms.registry import find_runner

PROGRAMS = {"runai": "runai", "lepton": "lep", "sky": "sky", "pai-dlc": "aliyun"}
OWN = {
    "runai": ["--image", "pytorch:25.04", "--account", "team"],
    "lepton": ["--image", "pytorch:25.04", "--instance", "gpu.1xh100"],
    "sky": ["--instance", "H100"],
    "pai-dlc": ["--image", "pytorch:25.04", "--account", "12345", "--instance", "ecs.gn7e"],
}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(params=list(PROGRAMS))
def launcher(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Install the stand-in under the launcher's program."""
    put_torchrun(tmp_path, monkeypatch)
    name = str(request.param)
    defaults = ClientOptions.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "log_every_s", 0.0)
    with client_program(tmp_path, PROGRAMS[name]):
        yield name


def words(launcher: str, tmp_path: Path) -> list[str]:
    """A training whose checkpoints lie on a mount that both sides see under one name."""
    source = "dataset=d-77" if launcher == "pai-dlc" else str(tmp_path)
    mount = ["--mount", f"{source}:{tmp_path}", "--save-dir", f"{tmp_path}/ckpt"]
    mount += ["--allow", "storage"] if launcher == "sky" else []  # which really copies paths
    return [
        "train",
        "tiny-llama",
        "--cluster",
        "h100:1",
        *("--seq", "128", "--gbs", "8", "--layout", "mbs=1"),
        "--launcher",
        launcher,
        "--steps",
        "30",
        "--time",
        "1h",
        *OWN[launcher],
        *mount,
    ]


def test_two_jobs_followed_to_the_end(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("STEPS_A_JOB", "20")
    arguments = [*words(launcher, tmp_path), "-o", "run", "--follow"]
    assert cli.run([*arguments, "--dry-run"]) == 0
    dry = capsys.readouterr().out
    assert cli.run(arguments) == 0
    out, err = capsys.readouterr()
    if launcher != "pai-dlc":  # which ends a job itself
        assert "note  time         the platform has no limit on time: coreutils' timeout" in err
    assert "note  time         it tells no exit code" in err
    assert "done: step 30 of 30 is done" in out
    sent = next(
        path
        for path in Path("run/jobs/1/job").iterdir()
        if path.name.startswith("job.") and path.suffix in (".sh", ".yaml", ".json")
    )
    assert sent.read_text() in dry
    assert str(sent.absolute()) in dry.splitlines()[-2], "the command names the file that it sends"
    second = [
        json.loads(line)["step"] for line in Path("run/jobs/2/stdout.log").read_text().splitlines()
    ]
    assert second == list(range(21, 31))


def test_it_is_ended(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("STEP_S", "60")
    assert cli.run([*words(launcher, tmp_path), "-o", "run"]) == 0
    capsys.readouterr()
    assert cli.run(["train", "cancel", "run"]) == 0
    assert capsys.readouterr().out == "told to end: job 1\n"
    assert cli.run(["train", "status", "run", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)["jobs"][0]["status"]
    assert status["state"] == "cancelled"
    assert status["reason"] in find_runner(launcher).states


@pytest.mark.parametrize("launcher", ["sky"], indirect=True)
def test_checkpoints_on_a_copy_that_goes_with_the_node_stop_it(
    launcher: str, tmp_path: Path, capsys: Capture
) -> None:
    assert cli.run([*words(launcher, tmp_path)[:-2], "-o", "run", "--dry-run"]) == 1
    assert (
        f"STOP  storage      checkpoints go to {tmp_path}/ckpt, a path that sky copies to each node"
        in capsys.readouterr().out
    )
    bucket = ["--mount", "s3://mine:/ckpt", "--save-dir", "/ckpt/run"]
    assert cli.run([*words(launcher, tmp_path)[:-6], *bucket, "-o", "run", "--dry-run"]) == 0
    assert "mode: MOUNT" in capsys.readouterr().out


@pytest.mark.parametrize("launcher", ["runai", "pai-dlc"], indirect=True)
def test_what_is_refused_is_said(launcher: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "state").rmdir()
    assert cli.run([*words(launcher, tmp_path), "-o", "run"]) == 2
    assert f"error: {launcher}: " in capsys.readouterr().err
    (tmp_path / "bin" / PROGRAMS[launcher]).unlink()
    assert cli.run([*words(launcher, tmp_path), "-o", "other"]) == 2
    assert f"error: {launcher}: {PROGRAMS[launcher]} is not there: " in capsys.readouterr().err


@pytest.mark.parametrize("launcher", ["pai-dlc"], indirect=True)
def test_a_quota_is_asked_for_as_export_asks(
    launcher: str, tmp_path: Path, capsys: Capture
) -> None:
    own = len(OWN[launcher]) - OWN[launcher].index("--account") + 4  # and the four of the mount
    quota = ["--account", "12345", "--partition", "quota1", "--priority", "7"]
    quota += ["--cpus", "8", "--node-memory", "64Gi", "--shared-memory", "16Gi"]
    arguments = [*words(launcher, tmp_path)[:-own], *quota, *words(launcher, tmp_path)[-4:]]
    assert cli.run([*arguments, "-o", "run", "--dry-run"]) == 0
    out = capsys.readouterr().out
    body, _ = json.JSONDecoder().raw_decode(out, out.index('{\n "WorkspaceId"'))
    (spec,) = body["JobSpecs"]
    assert spec["ResourceConfig"] == {
        "CPU": "8",
        "GPU": "1",
        "Memory": "64Gi",
        "SharedMemory": "16Gi",
    }
    assert (body["ResourceId"], body["Priority"]) == ("quota1", 7)
    assert body["JobMaxRunningTimeMinutes"] == 60
    sent = 'aliyun pai-dlc POST /api/v1/jobs --header "Content-Type=application/json" --body'
    assert f'exec {sent} "$(cat "$0")"' in out.splitlines()[-2]


@pytest.mark.parametrize("launcher", ["runai"], indirect=True)
def test_checkpoints_that_the_container_would_lose_stop_it(
    launcher: str, tmp_path: Path, capsys: Capture
) -> None:
    assert (
        cli.run(
            [*words(launcher, tmp_path)[:-2], "--save-dir", "/elsewhere", "-o", "run", "--dry-run"]
        )
        == 1
    )
    assert (
        "STOP  storage      checkpoints go to /elsewhere, which no writable mount"
        in capsys.readouterr().out
    )


def test_a_study_on_it(launcher: str, tmp_path: Path, capsys: Capture) -> None:
    """`tune` sends its runs through the same executor as `train`."""
    (tmp_path / "bin" / "torchrun").write_text(
        "#!/bin/sh\nfor step in 1 2 3 4 5 6 7 8 9 10; do\n"
        """  printf '{"event": "step", "step": %s, "loss": 7.0, "gradient_norm": 1.0,"""
        """ "step_s": 0.5}\\n' "$step"\n"""
        "done\n"
    )
    arguments = ["tune", "tiny-llama", "--cluster", "h100:1", "--seq", "128", "--gbs", "8"]
    arguments += ["--launcher", launcher, "--max-runs", "1", *OWN[launcher], "-o", "study"]
    assert cli.run([*arguments, "--dry-run"]) == 0
    assert "torchrun" in capsys.readouterr().out
    assert cli.run(arguments) == 0, capsys.readouterr().err
    (run,) = Path("study/runs").iterdir()
    assert json.loads((run / "stdout.log").read_text().splitlines()[-1])["step"] == 10
    assert "best: --layout" in capsys.readouterr().out
