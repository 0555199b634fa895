"""Workspaces, datasets and results, on a stand-in with the words of NGC CLI 4.19.1."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from meshwright.cli import run
from meshwright.platforms.base_command.storage import choose, staged
from meshwright.values.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ngc = tmp_path / "bin" / "ngc"
    ngc.parent.mkdir()
    ngc.write_text(
        f'#!/bin/bash\nexec {sys.executable} {ROOT}/tests/platforms/executors/ngc.py "$@"\n'
    )
    ngc.chmod(0o755)
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("PATH", f"{ngc.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NGC_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name in ("a.jsonl", "b.tmp", "raw/c.jsonl", "raw/d.tmp", ".git/config", "deep/raw/e.jsonl"):
        (tmp_path / "corpus" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "corpus" / name).write_text(name)
    return tmp_path / "corpus"


def sent(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ([], [".git/config", "a.jsonl", "b.tmp", "deep/raw/e.jsonl", "raw/c.jsonl", "raw/d.tmp"]),
        (["*.tmp", ".git"], ["a.jsonl", "deep/raw/e.jsonl", "raw/c.jsonl"]),
        (["raw"], [".git/config", "a.jsonl", "b.tmp"]),
        (["/raw"], [".git/config", "a.jsonl", "b.tmp"]),
        (["raw/*.tmp"], [".git/config", "a.jsonl", "b.tmp", "deep/raw/e.jsonl", "raw/c.jsonl"]),
        (["deep/raw"], [".git/config", "a.jsonl", "b.tmp", "raw/c.jsonl", "raw/d.tmp"]),
    ],
)
def test_patterns_leave_out_names_or_paths(
    corpus: Path, patterns: list[str], left: list[str]
) -> None:
    chosen = choose(corpus, exclude=patterns)
    assert sorted(chosen.files) == left
    assert chosen.excluded == 6 - len(left)
    assert chosen.size_bytes == sum(map(len, left))
    with staged(chosen) as folder:
        assert sent(folder) == left
        assert (folder / left[-1]).read_text() == left[-1]


def test_links_are_followed_and_circles_end(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "else").write_text("x")
    (corpus / "link").symlink_to(tmp_path / "else")
    (corpus / "raw" / "up").symlink_to(corpus)
    assert {"link", "raw/c.jsonl"} <= set(choose(corpus).files)
    assert not [name for name in choose(corpus).files if name.startswith("raw/up/")]


def test_nothing_to_send(corpus: Path) -> None:
    with pytest.raises(ConfigError, match="holds no file beside the 6 that are left out"):
        choose(corpus, exclude=["*"])
    with pytest.raises(ConfigError, match="does not exist"):
        choose(corpus / "none")


def test_a_workspace_is_made_once_filled_and_listed(
    state: Path, corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["bcp", "create", "workspace=flow"]) == 0
    assert run(["bcp", "create", "workspace=flow"]) == 0
    assert capfd.readouterr().out == "id-flow  flow\nid-flow  flow: was there already\n"
    assert (
        run(
            [
                "bcp",
                "upload",
                "workspace=flow",
                str(corpus),
                "--exclude",
                "*.tmp",
                "--exclude",
                ".git",
                "--to",
                "/in",
            ]
        )
        == 0
    )
    assert "3 files, 34 B, 3 left out\n" in capfd.readouterr().out
    assert sent(state / "workspaces" / "flow") == [
        "in/a.jsonl",
        "in/deep/raw/e.jsonl",
        "in/raw/c.jsonl",
    ]
    assert run(["bcp", "list", "workspaces", "--name", "fl*"]) == 0
    assert capfd.readouterr().out == "id-flow  flow  2.05 kB  ace-1\n"
    assert run(["bcp", "list", "workspaces", "--name", "other"]) == 1


def test_a_dataset_leaves_out_files_too(
    state: Path, corpus: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """NGC CLI itself has no --exclude for them."""
    assert run(["bcp", "upload", "dataset=mine", str(corpus), "--exclude", "*.tmp", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["excluded"], found["code"]) == (2, 0)
    assert sent(state / "datasets" / "mine") == [
        ".git/config",
        "a.jsonl",
        "deep/raw/e.jsonl",
        "raw/c.jsonl",
    ]


def test_a_dry_run_lists_files_and_the_command_and_asks_nothing(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert (
        run(
            [
                "bcp",
                "upload",
                "workspace=flow",
                str(corpus),
                "--exclude",
                "raw",
                "--org",
                "o",
                "--dry-run",
            ]
        )
        == 0
    )
    command = f"ngc base-command workspace upload flow --source {corpus} --org o"
    assert (
        capsys.readouterr().out
        == f".git/config\na.jsonl\nb.tmp\n3 files, 23 B, 3 left out\n{command}\n"
    )
    assert (
        run(["bcp", "mount", "workspace=flow", "/mnt/flow", "--remote-path", "/in", "--dry-run"])
        == 0
    )
    assert (
        capsys.readouterr().out
        == "ngc base-command workspace mount flow /mnt/flow --mode RO --remote-path /in\n"
    )
    assert run(["bcp", "create", "workspace=flow", "--ace", "a", "--dry-run"]) == 0
    assert (
        capsys.readouterr().out
        == "ngc base-command workspace create --name flow --ace a --format_type json\n"
    )


def test_ngc_takes_every_other_command(
    state: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["bcp", "mount", "workspace=flow", str(tmp_path / "there"), "--rw"]) == 0
    assert '"mode": "RW"' in capfd.readouterr().out
    assert run(["bcp", "unmount", str(tmp_path / "there")]) == 0
    assert (
        run(
            [
                "bcp",
                "download",
                "result=5000001:1",
                "-o",
                str(tmp_path / "r"),
                "--exclude",
                "*.ckpt",
                "--dir",
                "logs",
            ]
        )
        == 0
    )
    assert '"target": "5000001:1"' in capfd.readouterr().out
    assert run(["bcp", "upload", "workspace=none", str(tmp_path / "bin")]) == 3
    assert (
        "NGC CLI ended with code 1: ngc base-command workspace upload none"
        in capfd.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("create dataset=x", "a dataset is made by its upload"),
        ("create workspace=aaaaaaaaaaaaaaaaaaaaaa", "has 22 letters, as an id has"),
        ("upload flow .", "flow: expected workspace=NAME"),
        ("upload workspaces=flow .", "did you mean 'workspace'?"),
        ("upload result=7 bin", "a result is what its job writes"),
        ("upload dataset=a bin --to /x", "--to: a dataset has the folders of its source"),
        ("mount workspace=flow bin", "bin: is not empty"),
        ("download workspace=flow --exclude x", "name what is wanted by --file and --dir"),
        ("list jobs", "'jobs' is no known kind of storage"),
    ],
)
def test_bad_requests_are_one_line(
    words: str, message: str, state: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["bcp", *words.split()]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert message in err


def test_a_later_ngc_is_refused(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NGC_VERSION", "4.20.0")
    assert run(["bcp", "list", "workspaces"]) == 2
    assert "NGC CLI 4.20.0 has no base-command any more" in capsys.readouterr().err
