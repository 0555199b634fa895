from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.data.test_indexed import write

from meshwright.cli import run


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a", [[[5, 6, 7]], [[8, 50256]]], "<u2")
    write(tmp_path / "b", [[[1]]], "<u2")
    return tmp_path


def test_merge_then_verify(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "merge", "--input", "a", "b", "-o", "m"]) == 0
    assert capsys.readouterr().out == "m: 2 pairs, 3 documents, 6 tokens\n"
    assert run(["data", "verify", "m", "--vocab-size", "50257"]) == 0
    assert (
        "m: all is well\n  ok    header and sizes: version 1, ids uint16, 3 sequences, 3"
        " documents\n" in capsys.readouterr().out
    )
    assert run(["data", "verify", "m", "--vocab-size", "50256"]) == 1
    assert "  FAIL  ids: the highest is 50,256, vocabulary 50,256\n" in capsys.readouterr().out
    assert run(["data", "merge", "a", "-o", "m"]) == 2


def test_stats_and_blend(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "stats", "a", "b"]) == 0
    assert "all: 3 documents, 3 sequences, 6 tokens" in capsys.readouterr().out
    assert run(["data", "blend", "a", "b", "--train-tokens", "12"]) == 0
    assert "0.833333  a: 5 tokens, read 2.00 times\n" in capsys.readouterr().out
    assert run(["data", "blend", "a", "b", "--to", "megatron"]) == 0
    assert capsys.readouterr().out == "--data-path 0.833333 a 0.166667 b\n"
    assert run(["data", "blend", "a", "b", "--weights", "b=1,a=1", "--json"]) == 0
    assert [row["weight"] for row in json.loads(capsys.readouterr().out)["blend"]] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("merge -o x", "no pair: give prefixes, or a folder"),
        ("verify none", "none.idx does not exist"),
        ("blend a --by size", "'size' is no known value of --by"),
        ("blend a --weights 1,b=2", "--weights 1,b=2: expected numbers"),
        ("blend a --temperature nan", "--temperature nan: expected more than 0"),
        (
            "blend a b --weights 1,2 --temperature 2",
            "--by and --temperature have no effect on them",
        ),
        ("blend a --train-tokens 0", "--train-tokens 0: expected 1 or more"),
        ("verify a --vocab-size 0", "vocab_size=0: expected 1 or more"),
    ],
)
def test_bad_requests_are_one_line(
    pairs: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert run(["data", *words.split()]) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert printed.count("\n") == 1


def test_answers_go_to_files_too(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "blend", "a", "b", "-o", "out/blend.json"]) == 0
    assert json.loads((pairs / "out" / "blend.json").read_text())["blend"][0]["tokens"] == 5
    assert run(["data", "stats", "a", "-o", "out"]) == 2
    assert capsys.readouterr().err.startswith("error: --output out: ")


def test_a_step_is_read_back(pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "merge", "a", "b", "-o", "m"]) == 0
    assert run(["data", "check", "m.manifest.json"]) == 0
    assert capsys.readouterr().out.endswith("2 files, 114 B: all are well\n")
    assert (
        run(
            [
                "data",
                "check",
                "m.manifest.json",
                "--corpus",
                "slimpajama",
                "--chunks",
                "1",
                "--json",
            ]
        )
        == 1
    )
    assert len(json.loads(capsys.readouterr().out)["faults"]) == 5912
    (pairs / "m.bin").write_bytes((pairs / "m.bin").read_bytes()[::-1])
    assert run(["data", "check", "m.manifest.json"]) == 1
    assert "m.bin: does not have the sha256 of m.manifest.json" in capsys.readouterr().out
    assert run(["data", "check", "."]) == 2
    assert "a step writes it when the last rank has ended" in capsys.readouterr().err
