from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from meshwright.cli import complete, run


class Completions(Protocol):
    def __call__(self, *words: str, shell: str = "bash") -> list[str]: ...


@pytest.fixture
def completions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Completions:
    """What a shell is told for a line whose last word is incomplete; bash has cut words at `=` and
    `:` before."""

    def ask(*words: str, shell: str = "bash") -> list[str]:
        line = ("meshwright", *words)
        monkeypatch.setenv("_MESHWRIGHT_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", "\n".join(line))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", " ".join(line))
        with contextlib.suppress(SystemExit):
            run([])
        found = capsys.readouterr()
        assert found.err == ""
        return found.out.split()

    return ask


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("pl",), ["plan"]),
        (("data", "tok"), ["tokenize"]),
        (("plan", "llama2-7"), ["llama2-7b", "llama2-70b"]),
        (("plan", "x", "--cluster", "gb200"), ["gb200:8", "gb200:256"]),
        (("plan", "x", "--cluster", "h100", ":", "2"), ["256", "2048"]),
        (
            ("explain", "x", "--layout", "tp", "=", "8,sche"),
            [f"8,schedule={word}" for word in ("1f1b", "zero-bubble", "gpipe")],
        ),
        (("explain", "x", "--layout", "tp", "=", "8,sp", "="), ["0", "1"]),
        (("export", "x", "--to", "nemo1-"), ["nemo1-script"]),
        (("tune", "x", "--launcher", "s"), ["slurm", "sky"]),
        (("train", "x", "--launcher", "s"), ["slurm", "sky"]),
        (("serving", "tune", "x", "--launcher", "b"), ["bcp", "bcprun"]),
        (("chips", "b2"), ["b200"]),
        (("chips", "p5.4"), ["p5.48xlarge"]),
        (("plan", "x", "--cluster", "p5en"), ["p5en.48xlarge:8", "p5en.48xlarge:256"]),
        (("serving", "plan", "x", "--engine", "vl"), ["vllm"]),
        (("serving", "simulate", "x", "--layout", "attention_dp", "="), ["1", "2", "4", "8", "16"]),
        (("data", "plan", "--corpus", "x"), []),
        (("plan", "x", "--precision", "fp1"), ["fp16"]),
        (("plan", "x", "--routing", "ty"), ["typical"]),
        (("plan", "x", "--stack", "torcht"), ["torchtune", "torchtitan"]),
        (("plan", "x", "--objective", "tokens_per_d"), ["tokens_per_dollar"]),
        (("workflow", "slimpa"), ["slimpajama-8b"]),
        (("workflow", "x", "--launcher", "sl"), ["slurm"]),
        (("data", "run", "x", "--launcher", "sl"), ["slurm"]),
        (("export", "x", "--launcher", "torch"), ["torchrun"]),
        (("models", "llama2-7"), ["llama2-7b", "llama2-70b"]),
        (("nope", "x"), []),
    ],
)
def test_bash_is_told_the_values_of_an_option(
    words: tuple[str, ...], found: list[str], completions: Completions
) -> None:
    assert completions(*words) == found


@pytest.mark.parametrize("key", sorted(complete._VALUES), ids=" ".join)
def test_every_list_of_values_is_where_it_is_looked_for(key: tuple[str, str]) -> None:
    assert list(complete._VALUES[key](""))


def test_zsh_is_told_whole_words(completions: Completions) -> None:
    assert '"h100\\\\:64"' in completions("plan", "x", "--cluster", "h100:6", shell="zsh")[-1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is absent")
def test_bash_takes_the_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("_MESHWRIGHT_COMPLETE", "source_bash")
    with pytest.raises(SystemExit) as end:
        run([])
    assert end.value.code == 0
    (tmp_path / "meshwright").write_text(f'#!/bin/sh\nexec {sys.executable} -m meshwright "$@"\n')
    (tmp_path / "meshwright").chmod(0o755)
    ask = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=(meshwright chi)"
        ' COMP_CWORD=1\n_meshwright_completion meshwright\necho "${COMPREPLY[@]}"'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    del env["_MESHWRIGHT_COMPLETE"]
    result = subprocess.run(
        ["bash", "-c", ask],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("chips\n", "")
