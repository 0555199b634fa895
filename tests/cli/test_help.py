from __future__ import annotations

import pytest

from meshwright.cli import commands, run


def test_commands_of_a_group_are_listed_with_the_others() -> None:
    names = list(commands())
    assert "plan" in names
    assert "data" not in names


@pytest.mark.parametrize("words", [["nope"], ["data", "nope"]])
def test_an_unknown_command_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: 'nope' is no known command")
    assert err.count("\n") == 1


def test_a_group_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "--help"]) == 0
    assert "resumable after a kill at any moment" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [["--stack", ""], ["--stack="], ["-o", ""]])
def test_an_empty_value_is_no_default(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tune", "llama3-8b", "--cluster", "h100:8", *words]) == 2
    assert f"error: {words[0].rstrip('=')}: its value is empty" in capsys.readouterr().err


def test_a_platform_s_own_option_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [
        "export",
        "llama3-8b",
        "--cluster",
        "h100:8",
        "--seq",
        "4096",
        "--gbs",
        "8",
        "--layout",
        "tp=8",
        "--to",
        "megatron-lm",
    ]
    assert run([*asked, "--launcher", "slurm", "--launcher-word", "--comment=", "--dry-run"]) == 0
    assert "#SBATCH --comment=\n" in capsys.readouterr().out
