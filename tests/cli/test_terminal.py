from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = [
    "plan",
    "llama3-8b",
    "--cluster",
    "h100:16",
    "--seq",
    "8192",
    "--gbs",
    "64",
    "--set",
    "pp=1,2",
    "--set",
    "cp=1",
    "--top",
    "3",
]
SERVE = [
    "serving",
    "plan",
    "llama3-8b",
    "--cluster",
    "h100:8",
    "--input-len",
    "1000",
    "--output-len",
    "99",
]
COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;|48;)[0-9;]*m")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def in_terminal(words: list[str], *, width: int, **env: str) -> str:
    """What a command writes on a terminal of its own."""
    main, other = pty.openpty()
    found = {**os.environ, "COLUMNS": str(width), "TERM": "xterm-256color", **env}
    command = [sys.executable, "-m", "meshwright", *words]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=other, stderr=other, env=found
    ) as child:
        os.close(other)
        parts = []
        try:
            while part := os.read(main, 65536):
                parts.append(part)
        except OSError:
            pass  # Linux ends a terminal so
        assert child.wait() == 0
    os.close(main)
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    "words",
    [PLAN, ["chips"], ["chips", "h100"], ["models"], ["models", "llama3-70b"], SERVE],
)
def test_a_page_fits_80_columns_and_cuts_nothing(words: list[str]) -> None:
    text = in_terminal(
        [*words, *(["--quiet"] if words[0] == "plan" else [])], width=80, NO_COLOR="1"
    )
    lines = ESCAPE.sub("", text).splitlines()
    assert len(lines) > 5
    assert [line for line in lines if len(line) > 80] == []
    assert "…" not in text


def test_no_color_is_obeyed_on_a_terminal() -> None:
    assert COLOUR.search(in_terminal(PLAN, width=80, NO_COLOR="1")) is None


def test_a_pipe_gets_no_escapes(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "meshwright", *PLAN],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    assert b"\x1b" not in result.stdout + result.stderr


def test_quiet_keeps_the_bar_away() -> None:
    assert "pricing layouts" in in_terminal(PLAN, width=80)
    assert "pricing layouts" not in in_terminal([*PLAN, "-q"], width=80)
