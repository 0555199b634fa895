from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from meshwright.cli import run
from meshwright.runs.serving import trial
from meshwright.software.serving import EngineCommand, ServedWorker

STANDIN = Path(__file__).parents[1] / "runs" / "loads" / "standin.py"
SMALL = [
    "--cluster",
    "local:1",
    "--set",
    "pp=1",
    "--concurrency",
    "1,2",
    "--requests",
    "4",
    "--input-len",
    "8",
    "--output-len",
    "4",
]


def command(served: ServedWorker) -> EngineCommand:
    return EngineCommand(words=(sys.executable, str(STANDIN), served.port))


@pytest.mark.slow
def test_a_study_prints_a_line_for_each_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "engine_command", command)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ["serving", "tune", "tiny-llama", *SMALL, "-o", str(tmp_path / "study")]
    assert run(words) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [
        ["tp=1,weights=fp32,cache=fp32", f"concurrency={n}"] for n in (1, 2)
    ]
    assert any(
        line.startswith("best: tp=1,weights=fp32,cache=fp32 at concurrency=") for line in lines
    )
    assert "2 of 2 loads measured" in said.err
    # Limits that nothing keeps: the same folder holds another study then, and a new one says what
    # was nearest.
    assert run([*words, "--ttft", "0.001"]) == 2
    assert "holds another study" in capsys.readouterr().err
    assert run([*words[:-1], str(tmp_path / "other"), "--ttft", "0.001"]) == 1
    assert "no load kept the limits; nearest: TTFT" in capsys.readouterr().out
    assert (
        run([*words, "--json", "--quiet"]) == 0
    )  # goes on with the first, where nothing is left to do
    said = capsys.readouterr()
    assert said.err == ""
    content = json.loads(said.out)
    assert content["best"]["best_load"].startswith("concurrency=")
    assert [point["error"] for point in content["best"]["served"]["points"]] == [None, None]


def test_a_dry_run_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "llama3.1-8b",
        "--cluster",
        "h100:8",
        "--engine",
        "vllm",
        "--model-path",
        "/models/8b",
        "--launcher",
        "slurm",
        "--dry-run",
    ]
    assert run(["serving", "tune", *words]) == 0
    out = capsys.readouterr().out
    assert '"serve",\n  "/models/8b",\n  "--tensor-parallel-size"' in out
    assert "#SBATCH" in out and "it would be sent by: sbatch" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give --cluster"),
        (["--cluster", "local:1", "--set", "dp=2"], "axis of a deployment"),
        (
            ["--cluster", "local:1", "--engine", "vllm"],
            "vllm loads a checkpoint: give --model-path",
        ),
        (
            [
                "--cluster",
                "h100:2",
                "--engine",
                "vllm",
                "--model-path",
                "m",
                "--engine-word",
                "--max-seqs",
            ],
            "'--max-seqs' is no known option",
        ),
        (
            ["--cluster", "h100:2", "--engine", "fastertransformer", "--model-path", "m"],
            "engine that can be started",
        ),
        (
            ["--cluster", "h100:4,a100-80:4", "--engine", "vllm", "--model-path", "m"],
            "one kind of chip at a time",
        ),
        (["--cluster", "local:1", "--port", "99999"], "port=99999: expected 1 to 65535"),
        (
            ["--cluster", "local:1", "--trace", "t.csv", "--input-len", "3"],
            "have no effect with --trace",
        ),
        (["--cluster", "local:1", "--input-len", "0"], "input_len=0: expected 1 to"),
        (["--cluster", "local:1", "--launcher", "slrm"], "launcher"),
        (["--cluster", "local:1", "--max-runs", "0"], "max_runs=0: expected a number from 1"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serving", "tune", "tiny-llama", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.strip().splitlines()) == 1


def test_settings_are_candidates_and_a_wrong_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["serving", "tune", "llama3.1-8b", "--cluster", "h100:8", "--engine", "vllm"]
    words += ["--model-path", "/models/8b", "--set", "tp=1", "--dry-run"]
    settings = ["--set", "batched_tokens=2048,8192", "--set", "graphs=off", "--ttft-p99", "900"]
    assert run([*words, *settings]) == 0
    said = capsys.readouterr().out
    assert "tp=1,weights=bf16,cache=bf16,batched_tokens=2048,graphs=off" in said
    assert '"--enforce-eager"' in said and '"ttft_p99_s": 0.9' in said
    for wrong, why in (
        ("graph=off", "did you mean 'graphs'"),
        ("graphs=maybe", "graphs=maybe: expected on, off or both"),
        ("drafted=1", "llama3.1-8b has no layers for multi-token prediction"),
        ("chunked_prefill=off", ""),
    ):
        assert run([*words, "--set", wrong]) == (2 if why else 0)
        assert why in capsys.readouterr().err
    assert run([*words, "--ttft-p99", "0"]) == 2
    assert "--ttft-p99 0: expected a positive number" in capsys.readouterr().err
