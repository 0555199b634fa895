"""`meshwright why-oom` of a script or a configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_fix import TOO_LARGE
from tests.cli.test_fix_configs import TITAN

from meshwright.cli import run

Capture = pytest.CaptureFixture[str]
ON = ["--cluster", "h100:16"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(TOO_LARGE, encoding="utf-8")
    return path


def test_a_script_is_told_what_fills_the_memory_and_which_edit_fits(
    script: Path, capsys: Capture
) -> None:
    assert run(["why-oom", str(script), *ON]) == 0
    shown = capsys.readouterr().out
    assert "its largest term is activations" in " ".join(shown.split())
    assert "The smallest edit that fits" in shown
    assert run(["fix", str(script), *ON]) == 0
    assert capsys.readouterr().out in shown


def test_a_configuration_is_read_as_well(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TITAN, encoding="utf-8")
    assert run(["why-oom", str(path), *ON, "--gbs", "128", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["edit"]["fits"] == "yes"
    assert "+local_batch_size = 1   # crashed with 16" in found["edit"]["diff"]


def test_words_of_a_layout_stand_before_the_files(script: Path, capsys: Capture) -> None:
    assert run(["why-oom", str(script), *ON, "--mbs", "1"]) == 0
    shown = capsys.readouterr().out
    assert ",mbs=1," in shown
    assert "edit" not in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["llama3-8b"], "give the layout"),
        (["llama3-8b", "--tp", "2"], "--seq: not given"),
        (["no-such.sh"], "no-such.sh"),
        (["README.md"], "not recognised as any of"),
    ],
)
def test_what_is_missing_is_said(words: list[str], says: str, capsys: Capture) -> None:
    assert run(["why-oom", *words, *ON]) == 2
    assert says in capsys.readouterr().err
