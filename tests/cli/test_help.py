from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from meshwright.cli import commands, run
from meshwright.cli.help import first_sentence
from meshwright.cli.panels import FEW, FIRST, PANELS, first_of, panel_of


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


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_every_command_is_listed_with_its_whole_first_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = help_of(capsys, "--help")
    assert "..." not in text.partition("\n\n")[2]
    said = " ".join(text.split())
    for name, function in commands().items():
        if " " not in name or name.startswith("train "):
            first = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
            assert f"{name} {first_sentence(first)}" in said


def test_commands_stand_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "--help")
    titles = [line.rstrip(":") for line in text.splitlines() if line[:1].isupper() and ":" in line]
    order = ["Ask", "Prove", "Run", "Serve", "Data", "Show", "Other tools"]
    assert [title for title in titles if title in order] == order
    show = text.partition("Show:")[2].partition("Other tools:")[0]
    assert all(f"  {name} " in show for name in ("report", "ui", "models", "chips", "doctor"))


def option_names(name: str) -> list[str]:
    hints = get_type_hints(commands()[name], include_extras=True)
    return [
        one
        for one, hint in hints.items()
        if type((*get_args(hint), 0, 0)[1]).__name__ == "OptionInfo"
    ]


LONG = [name for name in commands() if len(option_names(name)) > FEW]


@pytest.mark.parametrize("name", LONG)
def test_a_long_command_s_options_are_all_in_groups(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = option_names(name)
    assert {one for one in options if panel_of(name, one) is None} == set()
    text = help_of(capsys, *name.split(), "--help-all")
    assert "Others:" not in text
    assert all(f"{title}:" in text for title in {panel_of(name, one) for one in options})


@pytest.mark.parametrize("name", LONG)
def test_the_short_help_of_a_long_command_has_few_options(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    short = help_of(capsys, *name.split(), "--help").partition("\nOptions:")[2]
    shown = [line for line in short.splitlines() if line.startswith("  -")]
    assert len(shown) <= 16  # the chosen, --json, --help and --help-all
    assert "--help-all" in short
    required = {
        option
        for option, parameter in inspect.signature(commands()[name]).parameters.items()
        if parameter.default is inspect.Parameter.empty
    }
    assert required & set(option_names(name)) <= set(first_of(name, option_names(name)))


def test_no_group_names_an_option_that_is_none() -> None:
    known = {one for name in LONG for one in option_names(name)}
    named = {one.rpartition(":")[2] for names in PANELS.values() for one in names}
    assert named - known == set()
    assert {
        (name, one) for name in LONG for one in FIRST[name] if one not in option_names(name)
    } == set()
    assert set(FIRST) - set(LONG) == set()


def test_an_example_can_be_copied_from_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "plan", "--help")
    shown = text.partition("Examples:\n")[2].partition("\n\n")[0].replace("\\\n", " ")
    told = [
        " ".join(paragraph.split())
        for paragraph in (inspect.getdoc(commands()["plan"]) or "").split("\n\n")
        if paragraph.lstrip().startswith("meshwright ")
    ]
    assert [" ".join(line.split()) for line in shown.splitlines()] == told


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["--tp", "2", "--pp", "1,2"], ["--set", "tp=2", "--set", "pp=1,2"]),
        (["--seq", "8k"], ["--seq", "8192"]),
        (["--num-gpus", "1k"], ["--num-gpus", "1000"]),
        (["--max-memory-gib", "0.07k"], ["--max-memory-gib", "70"]),
    ],
)
def test_short_forms_ask_the_same(words: list[str], same: list[str], tmp_path: Path) -> None:
    asked = [
        *("plan", "llama3-8b", "--cluster", "h100:8", "--set", "mbs=1", "--set", "recompute=none"),
        *("--quiet", "--top", "1", "--max-gbs", "8"),
    ]
    saved = []
    for number, more in enumerate((words, same)):
        path = tmp_path / f"{number}.yaml"
        seq = [] if "--seq" in more else ["--seq", "4096"]
        run([*asked, *seq, *more, "--save-request", str(path)])
        saved.append(path.read_text())
    assert saved[0] == saved[1]


def test_axes_stand_for_a_layout(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["why-oom", "llama3-8b", "--cluster", "h100:8", "--seq", "4k", "--gbs", "64", "--json"]
    assert run([*asked, "--layout", "tp=2,pp=2,mbs=1"]) == 0
    first = capsys.readouterr().out
    assert run([*asked, "--layout", "tp=2", "--pp", "2", "--mbs", "1"]) == 0
    assert capsys.readouterr().out == first
    assert run([*asked, "--layout", "tp=2 pp=2 mbs=1"]) == 0
    assert capsys.readouterr().out == first
