"""Two thousand inputs of any command, and proof that the judge would say what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.fuzz.lines import catalogue
from tests.fuzz.sandbox import judge
from tests.runs.measured.logs import megatron_log

from meshwright.cli import commands, run

ROOT = Path(__file__).resolve().parents[2]
INPUTS = 2000


def said(text: str, *, code: int, stream: str = "stderr") -> Callable[[Sequence[str]], int]:
    def ends(_: Sequence[str]) -> int:
        getattr(sys, stream).write(text)
        return code

    return ends


def raises(error: BaseException) -> Callable[[Sequence[str]], int]:
    def ends(_: Sequence[str]) -> int:
        raise error

    return ends


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        (raises(ValueError("x")), "ValueError"),
        (raises(RecursionError()), "RecursionError"),
        (raises(SystemExit(1)), "SystemExit"),
        (said("\udcff", code=0, stream="stdout"), "UnicodeEncodeError"),
        (said("", code=7), "exit 7"),
        (said("Traceback (most recent call last)\n", code=0), "traceback"),
        (said("", code=2), "0 lines"),
        (said("error: a\nerror: b\n", code=2), "2 lines"),
        (said('{"a": NaN}', code=0, stream="stdout"), "no JSON"),
        (said('{"a": [1e999]}', code=0, stream="stdout"), "infinite"),
    ],
)
def test_the_judge_says_what_is_wrong(ends: Callable[[Sequence[str]], int], kind: str) -> None:
    _, finding = judge(ends, ["plan", "--json"])
    assert finding is not None
    assert finding.kind.startswith(kind)


def test_the_judge_lets_pass_what_is_right() -> None:
    assert judge(said('{"a": 1}', code=0, stream="stdout"), ["plan", "--json"]) == (0, None)
    assert judge(said("error: a\n", code=2), ["plan"]) == (2, None)


def test_every_command_is_asked() -> None:
    known = {command.name: command for command in catalogue()}
    assert set(known) == set(commands())
    assert all(len(command.examples) >= 3 for command in known.values())


FOUND = (["autoconfigurator", "--write-conf", "conf", "--json"],)
"""Lines that a fuzz has found, each once."""


@pytest.mark.parametrize("words", FOUND, ids=" ".join)
def test_what_was_found_is_mended(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert judge(run, words) == (0, None)


REFUSED = (
    ["plan", "tiny-llama", "--cluster", "h100:8", "--gpus-per-node", "1e308"],
    ["explain", "tiny-llama", "--cluster", "h100:8", "--gpus-per-node", str(2**41), "--layout", ""],
    ["anchor", "a.log", "--model", "tiny-llama", "--cluster", "h100:8", "--gpus-per-node", "1e308"],
)
"""Lines that ended in a traceback, each once."""


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_was_found_is_refused_in_a_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.log").write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    assert judge(run, words) == (2, None)


@pytest.mark.slow
def test_no_input_ends_in_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fuzz"), str(INPUTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(r"(\d+) inputs: (\d+) with 0,", done.stdout)
    assert counts is not None, done.stdout
    assert int(counts[1]) >= INPUTS
    assert int(counts[2]) > INPUTS / 10, "valid questions are asked too"
