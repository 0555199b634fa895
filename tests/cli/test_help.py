from __future__ import annotations

import pytest

from meshwright.cli import commands, run


def test_commands_of_a_group_are_listed_with_the_others() -> None:
    names = list(commands())
    assert "plan" in names
    assert "data" not in names


@pytest.mark.parametrize("words", [["nope"], ["data", "nope"]])
def test_an_unknown_command_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: 'nope' is no known command")
    assert err.count("\n") == 1


def test_a_group_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "--help"]) == 0
    assert "resumable after a kill at any moment" in " ".join(capsys.readouterr().out.split())
