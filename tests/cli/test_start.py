from __future__ import annotations

import os
import pty
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest

import meshwright.__main__ as entry
from meshwright.cli.start import ask_command


def conversation(*answers: str) -> tuple[list[str], list[str]]:
    """The command that some answers lead to, and everything that was said."""
    left, said = list(answers), []

    def read(question: str) -> str:
        said.append(question)
        return left.pop(0)

    words = ask_command(read, said.append)
    assert not left
    return words, said


@pytest.mark.parametrize(
    ("answers", "command"),
    [
        (("", "", ""), "plan llama3-8b --cluster h100:8 --seq 8192"),
        (
            ("mixtral-8x7b", "a100-80:64", "2T"),
            "estimate mixtral-8x7b --cluster a100-80:64 --seq 8192 --tokens 2T",
        ),
        (("llama3-70b", "h100:8", "serve"), "serving plan llama3-70b --cluster h100:8"),
    ],
)
def test_three_answers_are_a_command(answers: tuple[str, ...], command: str) -> None:
    words, said = conversation(*answers)
    assert words == shlex.split(command)
    assert said[-1].strip() == f"$ meshwright {command}"


def test_an_answer_that_cannot_be_used_is_asked_again() -> None:
    words, said = conversation("lama3-8b", "llama3-8b", "8h100", "h100:8", "15", "15T")
    assert words[:4] == ["estimate", "llama3-8b", "--cluster", "h100:8"]
    assert any("did you mean 'llama3-8b'" in line for line in said)
    assert any("h100:8?" in line for line in said)
    assert any("15B or 15T" in line for line in said)


def in_terminal(typed: bytes) -> str:
    """What `meshwright` alone shows to somebody who types on a terminal."""
    main, other = pty.openpty()
    env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "xterm"}
    command = [sys.executable, "-m", "meshwright"]
    with subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=env) as child:
        os.close(other)
        os.write(main, typed)
        parts = []
        read: Callable[[int, int], bytes] = os.read
        try:
            while part := read(main, 65536):
                parts.append(part)
        except OSError:
            pass  # Linux ends a terminal so
        child.wait()
    os.close(main)
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_on_a_terminal_the_command_is_said_and_answered() -> None:
    text = in_terminal(b"llama3-8b\nh100:8\n\n")
    assert "$ meshwright plan llama3-8b --cluster h100:8 --seq 8192" in text
    assert "best: --layout" in text


def test_a_pipe_gets_the_help() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "meshwright"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.startswith("Usage: meshwright")


def test_ctrl_c_while_the_command_line_loads_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python runs the handler of the signal inside whatever is being imported."""

    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "meshwright.cli":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "meshwright.cli")
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
