"""`meshwright ci`, and the GitHub Action that calls it, on a repository made here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.test_fix_configs import NANOTRON, TITAN

from meshwright.cli import run

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[2]
NEW = """
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 2048
local_batch_size = 1
[parallelism]
tensor_parallel_degree = 2
"""
ON = ["--cluster", "h100:16"]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A branch `change` that left main; then main went on."""
    small = NANOTRON.replace("micro_batch_size: 4", "micro_batch_size: 1")
    titan = TITAN.replace("local_batch_size = 8", "global_batch_size = 128\nlocal_batch_size = 1")
    git(tmp_path, "init", "-q", "-b", "main")
    write(tmp_path, nano_yaml=small, titan_toml=titan, README_md="words\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "before")
    git(tmp_path, "checkout", "-q", "-b", "change")
    slow = small.replace("tp: 4", "tp: 8").replace("dp: 4", "dp: 2")
    full = titan.replace("local_batch_size = 1", "local_batch_size = 8")
    write(tmp_path, nano_yaml=slow, titan_toml=full, README_md="other words\n")
    git(tmp_path, "commit", "-q", "-a", "-m", "after")
    git(tmp_path, "checkout", "-q", "main")
    write(tmp_path, README_md="words of main\n", other_yaml=small)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "main goes on")
    git(tmp_path, "checkout", "-q", "change")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_change_is_priced_before_and_after(repository: Path, capsys: Capture) -> None:
    assert run(["ci", "main", "HEAD", *ON, "--json"]) == 1
    found = {one["file"]: one for one in json.loads(capsys.readouterr().out)["runs"]}
    assert list(found) == ["nano.yaml", "titan.toml"]  # main's own files and words are no part
    slow, full = found["nano.yaml"], found["titan.toml"]
    assert slow["verdict"] == "slower"
    assert "tensor-parallel; global batch 32 -> 16" in slow["says"]
    per_sequence = [slow[side]["step_s"] / gbs for side, gbs in (("before", 32), ("after", 16))]
    assert slow["change_frac"] == pytest.approx(per_sequence[1] / per_sequence[0] - 1)
    assert full["verdict"] == "does not fit any more"
    assert full["after"]["peak_memory_gib"] > 80


def test_only_what_is_worse_fails(repository: Path, capsys: Capture) -> None:
    nano = ["ci", "main", "HEAD", *ON, "--files", "nano*"]
    assert run(nano) == 0
    assert "slower, mostly tensor-parallel" in capsys.readouterr().out
    assert run([*nano, "--slower", "90"]) == 0
    assert run([*nano, "--slower", "1"]) == 1
    assert run(["ci", "HEAD", *ON]) == 0
    assert "no file that describes a run differs" in capsys.readouterr().err


def test_files_that_are_not_committed_count_without_a_head(
    repository: Path, capsys: Capture
) -> None:
    write(repository, nano_yaml=NANOTRON.replace("hidden_size", "hiden_size"))
    assert run(["ci", "HEAD", *ON]) == 1
    assert "nano.yaml: does not run any more: " in capsys.readouterr().out


def test_new_gone_and_renamed_files(repository: Path, capsys: Capture) -> None:
    git(repository, "mv", "nano.yaml", "llama.yaml")
    git(repository, "rm", "-q", "titan.toml")
    write(repository, new_toml=NEW)
    git(repository, "add", "-A")
    assert run(["ci", "HEAD", *ON, "--json"]) == 0
    found = {one["file"]: one["says"] for one in json.loads(capsys.readouterr().out)["runs"]}
    assert found["llama.yaml"] == "as fast"
    assert found["titan.toml"] == "gone"
    assert found["new.toml"] == "new"


def test_a_base_that_is_not_there_is_said(repository: Path, capsys: Capture) -> None:
    assert run(["ci", "nowhere", *ON]) == 2
    assert "check out with fetch-depth: 0" in capsys.readouterr().err


def action() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    return found


def stepped(inputs: dict[str, str], folder: Path, base: str) -> subprocess.CompletedProcess[str]:
    """Run the step that prices as GitHub's runner would, with what `${{ }}` stands for put in."""
    [step] = [one for one in action()["runs"]["steps"] if one.get("id") == "price"]
    usual = {name: one.get("default", "") for name, one in action()["inputs"].items()}
    known = {f"inputs.{name}": value for name, value in {**usual, **inputs}.items()}
    known["github.event.pull_request.base.sha"] = base
    env = {
        name: re.sub(r"\$\{\{ *(.*?) *\}\}", lambda found: known[found[1]], value)
        for name, value in step["env"].items()
    }
    tools = folder / "tools"
    tools.mkdir()
    command = tools / "meshwright"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m meshwright "$@"\n')
    command.chmod(0o755)
    path = {"PATH": f"{tools}:{os.environ['PATH']}", "GITHUB_STEP_SUMMARY": str(folder / "sum.md")}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder,
        env={**os.environ, **env, **path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_action_prices_a_pull_request(repository: Path) -> None:
    done = stepped({"cluster": "h100:16"}, repository, git(repository, "rev-parse", "main"))
    assert done.returncode == 1
    assert "::error file=titan.toml,title=meshwright::does not fit any more" in done.stderr
    assert "::notice file=nano.yaml,title=meshwright::" in done.stderr
    written = (repository / "sum.md").read_text(encoding="utf-8")
    assert written.startswith("### meshwright on h100:16\n")
    assert "| `titan.toml` | does not fit any more: " in written


def test_the_action_hands_its_inputs_on(repository: Path) -> None:
    inputs = {"cluster": "h100:16", "files": "nano*", "slower": "1", "base": "main"}
    done = stepped(inputs, repository, "")
    assert done.returncode == 1
    assert "titan" not in done.stdout
    assert "::error file=nano.yaml" in done.stderr


def test_the_action_puts_no_input_into_a_script() -> None:
    """An input is text of a pull request: it goes by the environment, never into shell code."""
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", "")
    [install] = [one for one in action()["runs"]["steps"] if one.get("id") == "install"]
    assert install["env"] == {"HERE": "${{ github.action_path }}"}
