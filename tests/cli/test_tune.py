"""`meshwright tune` from the command line, with a torchrun of the tests that prints what the
embedded trainer prints."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright import cli

Capture = pytest.CaptureFixture[str]
HERE = ["tune", "tiny-llama", "--cluster", "local:2"]

TORCHRUN = """#!{python}
import json, sys, time, pathlib
layout = json.loads(pathlib.Path("plan.json").read_text())["plans"][0]["layout"]
steps = int(next(word for word in sys.argv if word.startswith("steps=")).removeprefix("steps="))
if {fails}:
    sys.exit("RuntimeError: not today")
time.sleep({sleep_s})
step_s = 0.5 + 0.25 * (layout["tp"] == 2) + 0.125 * (layout["recompute"] != "none") + 0.01 * layout["mbs"]
for step in range(1, steps + 1):
    print(json.dumps({{"event": "step", "step": step, "loss": 7.0 - step / 10, "gradient_norm": 1.0, "step_s": step_s}}), flush=True)
"""  # noqa: E501


@pytest.fixture
def torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a torchrun of ours on the PATH and none beside Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshwright.platforms.local.executor._path", lambda: os.environ["PATH"])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    return write(tmp_path / "bin" / "torchrun")


def write(path: Path, *, fails: str = "False", sleep_s: float = 0.0) -> Path:
    path.write_text(
        TORCHRUN.format(python=sys.executable, fails=fails, sleep_s=sleep_s), encoding="utf-8"
    )
    path.chmod(0o755)
    return path


def error_of(arguments: list[str], capsys: Capture) -> str:
    """The one line that a refused command prints."""
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, err
    return lines[0].removeprefix("error: ")


def test_a_study_on_this_machine(torchrun: Path, capsys: Capture) -> None:
    assert cli.run([*HERE, "--max-runs", "3", "--tolerance", "0", "-o", "study"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    heads = ["run", "step", "predicted", "off", "tokens/s", "P(best)", "layout"]
    assert lines[0].split() == heads
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert re.match(r"stopped: 3 runs of \d+ candidates, as many as --max-runs allows", lines[4])
    assert lines[5].startswith("best: --layout tp=")
    assert err.count(" took ") >= 3
    best = Path("study/best.yaml").read_text(encoding="utf-8")
    assert lines[1].split()[1] in best
    assert (
        json.loads(Path("study/best/plan.json").read_text(encoding="utf-8"))["plans"][0]["layout"][
            "gbs"
        ]
        == 8
    )


def test_the_same_command_goes_on_and_repeats_nothing(torchrun: Path, capsys: Capture) -> None:
    assert cli.run([*HERE, "--max-runs", "1", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["study"] == "tune-tiny-llama-local-2"
    assert cli.run([*HERE, "--max-runs", "2", "--json", "--tolerance", "0"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in second["runs"]] == ["finished", "finished"]
    assert second["runs"][0] == first["runs"][0]
    assert second["best"]["measured"]["step_s"] == min(
        run["measured"]["step_s"] for run in second["runs"]
    )


@pytest.mark.slow
def test_tables_hold_every_run_once(torchrun: Path, capsys: Capture) -> None:
    for runs in ("1", "2"):
        assert cli.run([*HERE, "--max-runs", runs, "--tolerance", "0", "-o", "study"]) == 0
    rows = Path("study/results.csv").read_text(encoding="utf-8").splitlines()
    assert len(rows) == 3
    assert all(any(path.name in row for row in rows[1:]) for path in Path("study/runs").iterdir())
    assert Path("study/failed.csv").read_text(encoding="utf-8").count("\n") == 1


@pytest.mark.slow
def test_a_study_goes_on_from_what_the_machine_was_probed_to_do(
    torchrun: Path, capsys: Capture
) -> None:
    predicted = []
    for runs in ("1", "2"):
        assert (
            cli.run(
                [
                    *HERE,
                    "--max-runs",
                    runs,
                    "--tolerance",
                    "0",
                    "--strategy",
                    "grid",
                    "--json",
                    "-o",
                    "study",
                ]
            )
            == 0
        )
        assert cli.run([*HERE, "--dry-run", "-o", "study"]) == 0
        predicted.append(capsys.readouterr().out.rpartition("}\n")[2].split("\n\n")[0])
    assert predicted[0] == predicted[1]


def test_all_failed_is_an_answer_with_reasons(torchrun: Path, capsys: Capture) -> None:
    write(torchrun, fails="True")
    assert cli.run([*HERE, "--max-runs", "2"]) == 1
    out, err = capsys.readouterr()
    assert out.count("failed  tp") == 2
    assert "RuntimeError: not today" in out
    assert "no run finished" in err


def test_one_that_fails_stops_nothing(torchrun: Path, capsys: Capture) -> None:
    write(torchrun, fails='layout["tp"] == 1')
    choices = [
        word
        for choice in ("mbs=8,4", "pp=1", "recompute=none", "sharding=zero1")
        for word in ("--set", choice)
    ]
    assert cli.run([*HERE, "--strategy", "grid", "--max-runs", "20", *choices, "--json"]) == 0
    states = [
        (run["layout"]["tp"], run["state"]) for run in json.loads(capsys.readouterr().out)["runs"]
    ]
    assert states == [(1, "failed"), (2, "finished"), (2, "finished")]


def test_dry_run_prints_what_would_be_sent_and_writes_nothing(
    torchrun: Path, capsys: Capture
) -> None:
    assert cli.run([*HERE, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "first: tp=" in out
    assert "==> job.sh\n#!/usr/bin/env bash" in out
    assert "-m meshwright.trainer plan.json steps=10" in out
    assert sorted(path.name for path in torchrun.parent.parent.iterdir()) == ["bin"]


def test_dry_run_of_another_software_on_slurm(capsys: Capture) -> None:
    words = [
        "tune",
        "llama3-8b",
        "--cluster",
        "h100:16",
        "--seq",
        "8192",
        "--gbs",
        "64",
        "--launcher",
        "slurm",
        "--partition",
        "gpu",
    ]
    program = [
        "--to",
        "megatron-lm",
        "--program",
        "/opt/Megatron-LM/pretrain_gpt.py",
        "--max-steps-per-run",
        "7",
        "--dry-run",
    ]
    assert cli.run([*words, *program]) == 0
    out = capsys.readouterr().out
    assert "#SBATCH --partition=gpu" in out
    assert "/opt/Megatron-LM/pretrain_gpt.py" in out
    assert "--train-iters 7" in out.replace("\\\n", "")


def test_torchrun_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("meshwright.platforms.local.executor._path", lambda: "/usr/bin:/bin")
    assert "torchrun is not there" in error_of(HERE, capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_is_refused(torchrun: Path, capsys: Capture) -> None:
    from meshwright.runs.lock import locked

    assert cli.run([*HERE, "--max-runs", "1"]) == 0
    capsys.readouterr()
    with locked(Path("tune-tiny-llama-local-2")):
        assert f"in use by process {os.getpid()}" in error_of([*HERE, "--max-runs", "2"], capsys)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tune"], "give a model"),
        (["tune", "tiny-llama"], "tune needs a model such as llama3-8b and --cluster"),
        ([*HERE, "--launcher", "slrum"], "'slrum' is no known launcher; did you mean 'slurm'?"),
        (
            [*HERE, "--strategy", "predict"],
            "'predict' is no known strategy; did you mean 'predicted'?",
        ),
        (
            [*HERE, "--to", "megatron"],
            "'megatron' is no known export target; did you mean 'megatron-lm'",
        ),
        ([*HERE, "--program", "x.py"], "--program x.py: of no effect without --to"),
        (
            [*HERE, "--setting", "learning_rate=1"],
            "--setting learning_rate: of no effect with the embedded trainer",
        ),
        ([*HERE, "--max-runs", "0"], "max_runs=0: expected a number from 1"),
        (
            [*HERE, "--max-steps-per-run", "3"],
            "max_steps_per_run=3: expected 7 or more: the first are warm-up",
        ),
        ([*HERE, "--max-minutes-per-run", "0"], "minutes_per_run=0.0: expected a positive number"),
        ([*HERE, "--budget", "nan"], "budget=nan: expected GPU-hours, dollars or runs"),
        ([*HERE, "--tolerance", "1"], "tolerance=1: expected a share of the step time"),
        ([*HERE, "--precision", "fp8"], "has no fp8 matrix unit"),
        ([*HERE, "--set", "tp=3"], "no layout of this model can be run"),
        (
            ["tune", "llama3-8b", "--cluster", "h100:16", "--seq", "8192"],
            "tune compares layouts of one batch: give --gbs",
        ),
        (["tune", "t5-220m", "--cluster", "local:2"], "the embedded trainer runs decoders"),
        ([*HERE, "-o", "foreign"], "foreign: holds thesis.tex and no study.yaml"),
        (
            [*HERE, "-o", "other"],
            "other: holds another study, with model='tiny-moe' where 'tiny-llama' is asked for now",
        ),
    ],
)
def test_bad_input_is_one_clear_line(
    torchrun: Path, capsys: Capture, words: list[str], message: str
) -> None:
    Path("foreign").mkdir()
    Path("foreign/thesis.tex").touch()
    if "other" in words:
        assert (
            cli.run(["tune", "tiny-moe", "--cluster", "local:2", "--max-runs", "1", "-o", "other"])
            == 0
        )
        capsys.readouterr()
    assert message in error_of(words, capsys)


@pytest.mark.slow
def test_ctrl_c_leaves_what_runs_and_the_next_start_picks_it_up(
    torchrun: Path, tmp_path: Path
) -> None:
    write(torchrun, sleep_s=4.0)
    code = "import sys; from meshwright import cli\n"
    code += (
        "import meshwright.platforms.local.executor as local, os; local._path = lambda:"
        " os.environ['PATH']\n"
    )
    code += "sys.exit(cli.run(sys.argv[1:]))"
    words = [sys.executable, "-c", code, *HERE, "--max-runs", "1", "-o", "study"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    tuner = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )
    deadline = time.monotonic() + 120
    written = "study/runs/*/events.jsonl"
    while time.monotonic() < deadline:
        if any('"submitted"' in path.read_text() for path in tmp_path.glob(written)):
            break
        time.sleep(0.05)
    tuner.send_signal(signal.SIGINT)
    _, err = tuner.communicate(timeout=60)
    assert tuner.returncode == 130
    assert "go on without us; the same command picks them up" in err
    done = subprocess.run(
        words, capture_output=True, env=environment, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("study/runs/*/run.json"))) == 1
    events = [
        json.loads(line)["event"]
        for path in tmp_path.glob("study/runs/*/events.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert events == ["planned", "submitting", "submitted", "finished"]
