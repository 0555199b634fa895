from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import api, cli
from meshwright.cli.plan_files import read_request
from meshwright.search.request import PlanRequest

SMALL = ["plan", "llama3-8b", "--cluster", "h100:16", "--seq", "4096", "--gbs", "32"]
Capture = pytest.CaptureFixture[str]


def error_of(arguments: list[str], capsys: Capture) -> str:
    """The one line that a refused command prints."""
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seq", "8q"], "--seq 8q: expected a whole number, such as 8192 or 8k"),
        (["--headroom", "some"], "--headroom some: expected a number, such as 0.5"),
    ],
)
def test_a_value_that_is_no_number_is_named(
    words: list[str], message: str, capsys: Capture
) -> None:
    assert error_of([*SMALL, *words], capsys) == message


def test_table(capsys: Capture) -> None:
    assert cli.run([*SMALL, "--top", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "llama3-8b (8.03B parameters), seq 4096, gbs 32, bf16, stack megatron-bridge"
    free = r"\d+\.\d of them kept free"
    assert re.fullmatch(
        rf"16 x h100, 8 a node, 989 TFLOPS dense peak, 79\.1 GiB usable, {free}", lines[1]
    )
    assert lines[3].split()[:3] == ["#", "tp", "pp"] or lines[3].split()[:3] == ["#", "tp", "cp"]
    assert [found[1] for line in lines[4:] if (found := re.match(r" ?(\d+)~? ", line))][:3] == [
        "1",
        "2",
        "3",
    ]
    assert any(line.startswith("best: --layout tp=") for line in lines)
    assert any(
        re.fullmatch(
            r"#1 takes \S+ m?s, likely \S+ to \S+ \(\d+ published runs [^()]*like it\), and \S+"
            r" GiB, likely \S+ to \S+ \(\d+ (other runs|runs like it)\)",
            line,
        )
        for line in lines
    )


def test_a_pipe_has_a_line_a_row_and_explains_its_marks(capsys: Capture) -> None:
    asked = ["plan", "llama3-70b", "--cluster", "h100:256", "--seq", "8192", "--gbs", "512"]
    assert cli.run([*asked, "--set", "pp=4", "--set", "tp=4,8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:2] == ["#", "tp"])
    rows = lines[start + 1 : lines.index("", start)]
    assert [line.split()[0].rstrip("~") for line in rows] == [str(n + 1) for n in range(10)]
    marks = {"causal": " causal ", "* uneven stages": "4* ", "~ close": "1~ "}
    for legend, mark in marks.items():
        said = any(line.startswith(legend) for line in lines)
        assert said == any(mark in f"{line} " for line in lines[start : start + 11])
    assert all(line == line.rstrip() for line in lines)


def test_table_is_narrow_on_a_narrow_terminal() -> None:
    from io import StringIO

    from rich.console import Console

    from meshwright.report.plan_table import print_plans

    text = StringIO()
    result = api.plan(model="llama3-70b", cluster="h100:256", seq_len=8192, gbs=512, top=10)
    print_plans(result, Console(file=text, width=80, force_terminal=True, color_system=None))
    lines = text.getvalue().splitlines()
    assert max(len(line) for line in lines) <= 80
    start = next(i for i, line in enumerate(lines) if line.split()[:2] == ["#", "tp"])
    assert [line.split()[0].rstrip("~") for line in lines[start + 1 : start + 11]] == [
        str(rank) for rank in range(1, 11)
    ]
    assert not any("…" in line for line in lines)


def test_a_terminal_shows_as_many_plans_as_are_seen_whole() -> None:
    from io import StringIO

    from rich.console import Console

    from meshwright.report.plan_table import MOST_LINES, print_plans

    def shown(width: int, **asked: Any) -> list[str]:
        text = StringIO()
        result = api.plan("llama3-70b", "h100:256", seq=8192, gbs=512, **asked)
        print_plans(result, Console(file=text, width=width, force_terminal=True, color_system=None))
        return text.getvalue().splitlines()

    lines = shown(100)
    assert len(lines) <= MOST_LINES
    assert any(line.endswith("more: --top N or --json shows them") for line in lines)
    assert any(line.startswith("#1 takes ") for line in lines)
    assert len(shown(100, top=10)) > MOST_LINES  # what is asked for is shown


def test_json_and_csv(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "plans.csv"
    assert cli.run([*SMALL, "--json", "--top", "2", "--csv", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [int(row["rank"]) for row in rows] == [1, 2]
    assert float(rows[0]["step_s"]) == found["plans"][0]["step_s"]
    assert int(rows[0]["tp"]) == found["plans"][0]["layout"]["tp"]
    assert found["search"]["seconds"] > 0


def test_nothing_fits_is_exit_1(capsys: Capture) -> None:
    assert (
        cli.run(
            ["plan", "llama3-70b", "--cluster", "h100:8", "--seq", "8192", "--gbs", "512", "--json"]
        )
        == 1
    )
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["plans"] == []
    assert found["search"]["nearest_miss"]["over_gib"] > 0
    assert "nearest miss: tp=8" in err
    assert "would fit: more chips: --cluster h100:" in err


def test_request_file_and_flags(tmp_path: Path, capsys: Capture) -> None:
    saved = tmp_path / "saved.yaml"
    assert (
        cli.run(
            [
                *SMALL,
                "--set",
                "tp=1,2",
                "--set",
                "recompute=none",
                "--save-request",
                str(saved),
                "--json",
            ]
        )
        == 0
    )
    first = json.loads(capsys.readouterr().out)
    assert PlanRequest.of(read_request(saved)).pins == {"tp": [1, 2], "recompute": ["none"]}
    assert cli.run(["plan", "--request", str(saved), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["request"] == first["request"]
    assert again["plans"] == first["plans"]
    assert cli.run(["plan", "--request", str(saved), "--gbs", "64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["request"]["gbs"] == 64


GOLDEN = {
    "plan llama3-8b": "plan needs --cluster, such as h100:256; --seq, such as 8192",
    "plan llama3-8c --cluster h100:8 --seq 1": (
        "'llama3-8c' is no known model; did you mean 'llama3-8b'"
    ),
    "plan llama3-8b --cluster h10:8 --seq 1": "'h10' is no known chip; did you mean 'h100'",
    "plan llama3-8b --cluster h100:x --seq 1": (
        "cluster 'h100:x': count 'x' of h100: expected a whole number of chips such as h100:256"
    ),
    "plan llama3-8b --cluster h100:0 --seq 1": "cluster 'h100:0': count 0 of h100: expected 1 to",
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --set mb=1": (
        "'mb' is no known layout key; did you mean 'mbs'"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --set tp": (
        "--set tp: expected key=value[,value...] such as tp=1,2"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --set tp=2,pp=2": (
        "--set tp=2,pp=2: one key with its values; write --set once"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --set tp=x": (
        "tp=x: expected a whole number"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --set tp=0": (
        "pins: tp=0: expected a whole number of 1 or more"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --set tp=1 --set tp=2": (
        "--set tp: given twice; join the values by commas"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --set gbs=4": (
        "pins: gbs is no pin; give gbs (--gbs) or max_gbs (--max-gbs)"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs -8": (
        "gbs=-8: expected a whole number of 1 or more"
    ),
    "plan llama3-8b --cluster h100:8 --seq 99999999999999999999 --gbs 8": (
        "seq_len=99999999999999999999"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --precision fp7": (
        "'fp7' is no known precision; did you mean"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --megatron-version new": (
        "megatron_version=new: expected a version such as 0.15.1"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --megatron-version 0.99": (
        "megatron_version=0.99: what Megatron-Core accepts was"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --attention flsh": (
        "'flsh' is no known attention kernel; did you mean 'flash'"
    ),
    "plan mixtral-8x7b --cluster h100:8 --seq 4096 --gbs 8 --routing wurst": (
        "'wurst' is no known routing; did you mean 'worst'"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --routing worst": (
        "routing=worst: of no effect on llama3-8b, which has no experts"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --decoder-seq 7": (
        "decoder_seq_len=7: of no effect on llama3-8b, which is no"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4096 --gbs 8 --stack=": (
        "--stack: its value is empty (an unset variable of the shell?)"
    ),
    "plan llama3-8b --cluster h100:37 --seq 4096 --gbs 8": (
        "gbs=8: no data-parallel size of 37 chips divides it; nearest that work: gbs=37"
    ),
    "plan llama3-8b --cluster h100:8 --seq 4098 --gbs 8 --set cp=2": (
        "no layout keeps the rules under cp=2: seq_len=4098 is"
    ),
    "plan llama3-8b --request nowhere.yaml": "request 'nowhere.yaml': No such file or directory",
    "plan llama3-8b --hf nowhere.json": (
        "plan llama3-8b --hf nowhere.json: give either a name or a config"
    ),
    "plan llama3-8b --gsb 4": "--gsb: no such option; did you mean --gbs",
    "pln": "'pln' is no known command; did you mean 'plan'",
}


@pytest.mark.parametrize("line", GOLDEN)
def test_bad_input_gets_one_line(line: str, capsys: Capture) -> None:
    assert error_of(line.split(), capsys).startswith(GOLDEN[line])


def test_interrupt_is_exit_130(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "plan", interrupted)
    assert cli.run(SMALL) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_help_lists_the_commands(capsys: Capture) -> None:
    assert cli.run(["--help"]) == 0
    listed = capsys.readouterr().out
    assert cli.run([]) == 0
    assert capsys.readouterr().out == listed
    for command in ("plan", "models", "chips"):
        assert f"\n  {command} " in listed
        assert cli.run([command, "--help"]) == 0
        assert "Examples:" in capsys.readouterr().out


def test_version(capsys: Capture) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("meshwright ")


FLAGS = [
    "--cluster",
    "--seq",
    "--gbs",
    "--max-gbs",
    "--set",
    "--top",
    "--objective",
    "--headroom",
    "--stack",
    "--precision",
    "--json",
    "--hf",
]
VALUES = [
    "h100:8",
    "a100-80:12",
    "4096",
    "8",
    "0",
    "-1",
    "1e9",
    "tp=2",
    "pp=3",
    "sharding=zero2",
    "layers_per_stage=8+24",
    "memory",
    "fsdp",
    "fp8",
    "0.1",
    "=",
]


@settings(max_examples=60)
@given(
    words=st.lists(
        st.one_of(st.sampled_from(FLAGS), st.sampled_from(VALUES), st.text(max_size=6)), max_size=10
    )
)
def test_fuzzed_command_lines_never_end_in_a_traceback(words: list[str]) -> None:
    assert cli.run(["plan", "llama3-8b", *words]) in (0, 1, 2)


@settings(max_examples=60)
@given(
    cluster=st.sampled_from(["h100:8", "h100:12", "v100-16:6", "a100-80:7"]),
    seq=st.sampled_from(["128", "4096", "4095"]),
    gbs=st.integers(1, 70),
    pins=st.lists(
        st.sampled_from(
            [
                *VALUES[7:11],
                "cp=2",
                "vpp=2",
                "recompute=full",
                "mbs=3",
                "ep=2",
                "dp=4",
                "sp=0",
                "schedule=gpipe",
            ]
        ),
        max_size=3,
    ),
    stack=st.sampled_from(["megatron", "fsdp", "nanotron", "deepspeed"]),
)
def test_likely_command_lines_never_end_in_a_traceback(
    cluster: str, seq: str, gbs: int, pins: list[str], stack: str
) -> None:
    sets = [word for pin in pins for word in ("--set", pin)]
    line = [
        "plan",
        "mixtral-8x7b",
        "--cluster",
        cluster,
        "--seq",
        seq,
        "--gbs",
        str(gbs),
        "--stack",
        stack,
        "--top",
        "1",
        *sets,
    ]
    assert cli.run(line) in (0, 1, 2)


def test_closed_pipe_ends_quietly() -> None:
    """`meshwright models | head -1` is no error of ours: the command ends by the signal, without a
    word."""
    shell = (
        f"{sys.executable} -m meshwright models --json | head -c 10 > /dev/null; echo"
        " ${PIPESTATUS[0]}"
    )
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("141", "")


def test_an_export_says_each_file_once_and_the_line_that_starts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "llama3-8b", "--cluster", "rtx4090:2", "--seq", "2048", "--gbs", "16"]
    given = [*words, "--finetune", "lora", "--export", str(tmp_path / "home")]
    assert cli.run([*given, "--to", "torchtune"]) == 0
    said = capsys.readouterr().err
    assert said.count("wrote ") == said.count("torchtune.yaml\n") - 1 == 1
    assert "run once on every node: tune run --nproc_per_node 2 lora_finetune_distributed" in said
    assert cli.run([*given, "--to", "trl"]) == 0
    assert "run once on every node: python meshwright_trl.py\n" in capsys.readouterr().err


def test_on_amd_the_plan_is_written_for_the_software_that_is_priced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "llama3-8b", "--cluster", "mi300x:8", "--seq", "8192", "--gbs", "64"]
    assert cli.run([*words, "--quiet", "--export", str(tmp_path / "amd")]) == 0
    said = capsys.readouterr()
    assert "stack primus" in said.out
    assert "which these files do not switch on" not in said.err
    assert sorted(path.name for path in (tmp_path / "amd").iterdir()) == ["primus.yaml", "train.sh"]
