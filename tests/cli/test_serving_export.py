from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli import run

PLAN = [
    "serving",
    "plan",
    "llama3.1-8b",
    "--cluster",
    "h100:2",
    "--mode",
    "aggregated",
    "--concurrency",
    "8",
    "--json",
]


@pytest.fixture
def plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run(PLAN) == 0
    path = tmp_path / "plans.json"
    path.write_text(capsys.readouterr().out)
    return path


def test_a_plan_becomes_files_and_says_how_they_start(
    plans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "serving",
        "export",
        str(plans),
        "--to",
        "vllm",
        "--model-path",
        "/models/8b",
        "-o",
        str(tmp_path / "serve"),
    ]
    assert run(words) == 0
    script = (tmp_path / "serve" / "serve.sh").read_text()
    assert "exec vllm serve /models/8b" in script and "--max-num-seqs 8" in script
    assert "wrote" in capsys.readouterr().err
    assert run(words) == 0  # the same again
    (tmp_path / "serve" / "serve.sh").write_text("mine")
    assert run(words) == 2
    assert "--force writes over it" in capsys.readouterr().err
    assert run([*words[:-2], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"][0]["text"] == script


def test_room_is_chosen(plans: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One copy of the plan runs 8 requests of 1024 and 1024 tokens."""
    words = ["serving", "export", str(plans), "--to", "vllm", "--model-path", "m", "--dry-run"]
    assert run([*words, "--max-model-len", "8192", "--max-num-seqs", "64"]) == 0
    script = capsys.readouterr().out
    assert "--max-model-len 8192" in script and "--max-num-seqs 64" in script
    assert run(words) == 0
    script = capsys.readouterr().out
    assert "--max-model-len 2048" in script and "--max-num-seqs 8 " in script


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["PLANS", "--to", "vllm", "--max-model-len", "99"], "requests have 2048 tokens"),
        (["PLANS", "--to", "vllm", "--max-num-seqs", "7"], "planned load has 8 requests at once"),
        (["PLANS#99", "--to", "vllm"], "none of rank 99"),
        (["PLANS#two", "--to", "vllm"], "expected a plan's number behind #"),
        (["PLANS", "--to", "vlm"], "did you mean 'vllm'"),
        (["PLANS", "--to", "k8s"], "a manifest needs --image"),
        (["PLANS", "--to", "vllm"], "nothing is written without -o DIR"),
        (["nowhere.json", "--to", "vllm"], "nowhere.json: cannot be read"),
    ],
)
def test_bad_words_are_one_line(
    words: list[str], says: str, plans: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [word.replace("PLANS", str(plans)) for word in words]
    assert run(["serving", "export", *named, "--model-path", "/models/8b"]) == 2
    error = capsys.readouterr().err
    assert says in error and len(error.strip().splitlines()) == 1


def test_a_plan_of_training_is_none_of_serving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plans.json"
    path.write_text('{"request": {"model": "llama3-8b"}, "plans": [{"rank": 1, "layout": {}}]}')
    assert run(["serving", "export", str(path), "--to", "vllm", "--model-path", "m"]) == 2
    assert "no plan of serving" in capsys.readouterr().err
