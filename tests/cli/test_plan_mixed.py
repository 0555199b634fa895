from __future__ import annotations

import csv
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from meshwright import cli
from meshwright.cli.export import for_export
from meshwright.search.request import PlanRequest

Capture = pytest.CaptureFixture[str]
TWO = [
    "plan",
    "llama3-8b",
    "--cluster",
    "a800:8,h800:8",
    "--seq",
    "4096",
    "--gbs",
    "32",
    "--set",
    "cp=1",
    "--set",
    "vpp=1",
]


def error_of(arguments: list[str], capsys: Capture) -> str:
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def test_table_says_stages_idle_chips_and_proof(capsys: Capture) -> None:
    assert cli.run([*TWO, "--top", "2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    named = "llama3-8b (8.03B parameters), seq 4096, gbs 32, bf16, stack megatron-bridge, 16 chips"
    assert lines[0] == named
    assert lines[1].startswith("8 x a800, in one node, 312 TFLOPS dense peak") and lines[
        2
    ].startswith("8 x h800, in one node, 989 TFLOPS")
    assert lines[4].split()[:2] == ["#", "stages:"]
    assert re.match(r"1  \w+ tp\d+ [\dx+]+", lines[5])
    assert any(re.match(r"#1 uses \d+ a800( \(\d+ idle\))?, \d+ h800", line) for line in lines)
    assert any(line.startswith("proof by the closed form that ranks: no plan ") for line in lines)


def test_json_has_the_contract_and_stages(capsys: Capture) -> None:
    assert cli.run([*TWO, "--top", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    plan = answer["plans"][0]
    assert {
        "rank",
        "layout",
        "step_s",
        "tokens_per_s_per_gpu",
        "mfu",
        "tflops_per_gpu",
        "fits",
        "interval",
        "time",
        "memory",
    } <= set(plan)
    assert {"chip", "layers", "tp", "dp", "mbs", "recompute"} <= set(plan["stages"][0])
    assert {"layouts", "seconds", "exhaustive", "bound_gap", "bound_step_s"} <= set(
        answer["search"]
    )


def test_csv_and_trace_are_written(tmp_path: Path, capsys: Capture) -> None:
    assert (
        cli.run(
            [
                *TWO,
                "--top",
                "1",
                "--set",
                "pp=2",
                "--csv",
                str(tmp_path / "plans.csv"),
                "--trace",
                str(tmp_path / "trace"),
            ]
        )
        == 0
    )
    assert (tmp_path / "plans.csv").read_text().count("\n") == 2
    trace = json.loads((tmp_path / "trace" / "plan-1.json").read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["tid"] for event in events if event["cat"] == "forward"} == {0, 1}
    [row] = csv.DictReader((tmp_path / "plans.csv").read_text().splitlines())
    end_s = max(event["ts"] + event["dur"] for event in events) / 1e6
    assert end_s == pytest.approx(float(row["step_s"]), rel=1e-6)
    for stage in (0, 1):
        own = sorted(
            (event["ts"], event["ts"] + event["dur"]) for event in events if event["tid"] == stage
        )
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(own))


def test_caps_are_said(capsys: Capture) -> None:
    assert cli.run([*TWO, "--num-gpus", "8", "--top", "1"]) == 0
    assert "up to 8 chips\nup to 8 x a800" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-gpus", "24"], "have 16 chips together"),
        (["--num-gpus", "12"], "no multiple of the 8 chips of a node; nearest that are: 8 or 16"),
        (
            ["--export", "files", "--to", "torchtitan"],
            "--export ... --to torchtitan: it has no words for stages on several kinds of chips",
        ),
        (
            ["--export", "files", "--unlike-batch"],
            "--unlike-batch: megatron-lm has one dp and mbs for all ranks",
        ),
        (["--objective", "memory"], "objective=memory"),
    ],
)
def test_bad_flags_get_one_line(flags: list[str], message: str, capsys: Capture) -> None:
    assert message in error_of([*TWO, *flags], capsys)


def test_other_commands_say_that_they_take_one_kind(capsys: Capture) -> None:
    words = [
        "explain",
        "llama3-8b",
        "--cluster",
        "a800:8,h800:8",
        "--seq",
        "4096",
        "--gbs",
        "32",
        "--layout",
        "tp=8",
    ]
    assert "several kinds of chips are for `meshwright plan` alone" in error_of(words, capsys)


def test_a_deadline_is_kept_at_least_cost_and_the_front_follows(capsys: Capture) -> None:
    priced = [word.replace("a800:8,h800:8", "a100-80:8,h100:8") for word in TWO]
    pinned = [
        *priced,
        "--top",
        "1",
        "--set",
        "mbs=1",
        "--set",
        "tp=1,2",
        "--tokens",
        "10B",
        "--deadline",
        "2D",
    ]
    assert cli.run([*pinned, "--pareto", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    best = answer["plans"][0]
    used = sum(part["used"] for part in best["chips"])
    assert answer["request"]["objective"] == "tokens_per_dollar"
    assert best["tokens_per_s_per_gpu"] * used >= 10e9 / (2 * 86400)
    rates = [
        plan["tokens_per_s_per_gpu"] * sum(part["used"] for part in plan["chips"])
        for plan in answer["pareto"]
    ]
    assert rates == sorted(rates) and min(rates) >= 10e9 / (2 * 86400)
    assert cli.run(pinned) == 0
    assert re.search(
        r"^#1 trains 10B tokens in [01]\.\d\d days for [\d,]+ dollars, without stops",
        capsys.readouterr().out,
        re.MULTILINE,
    )


def test_goals_that_say_too_little_or_too_much(capsys: Capture) -> None:
    instead = "; `meshwright estimate` says days and cost"
    assert (
        error_of([*TWO, "--deadline", "3D"], capsys)
        == f"--deadline: of no effect without --tokens, such as 300B{instead}"
    )
    assert (
        error_of([*TWO, "--tokens", "1B"], capsys)
        == f"--tokens: of no effect without --deadline, such as 30D{instead}"
    )
    assert "no price of h800" in error_of([*TWO, "--pareto"], capsys)
    both = [*TWO, "--tokens", "1B", "--deadline", "3D", "--min-tokens-per-s", "5"]
    assert (
        error_of(both, capsys) == "--min-tokens-per-s: the deadline says how many; leave out either"
    )


def test_a_plan_that_leaves_chips_idle_is_exported_for_those_it_uses(
    tmp_path: Path, capsys: Capture
) -> None:
    """Of one kind all stages of which run alike."""
    some = [
        "plan",
        "llama3-8b",
        "--cluster",
        "h100:16",
        "--num-gpus",
        "8",
        "--seq",
        "4096",
        "--gbs",
        "16",
        "--set",
        "pp=2",
        "--set",
        "vpp=1",
    ]
    pinned = [*some, "--set", "tp=2", "--set", "recompute=none", "--top", "1", "--json"]
    assert cli.run([*pinned, "--export", str(tmp_path / "now")]) == 0
    (tmp_path / "plan.json").write_text(capsys.readouterr().out)
    assert (
        cli.run(
            [
                "export",
                str(tmp_path / "plan.json"),
                "--to",
                "megatron-lm",
                "-o",
                str(tmp_path / "later"),
            ]
        )
        == 0
    )
    files = [(tmp_path / folder / "train.sh").read_text() for folder in ("now", "later")]
    assert files[0] == files[1] and "--pipeline-model-parallel-size 2" in files[0]
    assert "pretrain_gpt.py" in capsys.readouterr().err


def test_a_plan_over_two_kinds_is_written_for_megatron(tmp_path: Path, capsys: Capture) -> None:
    """What is searched is said, and stages on both kinds share one command; its file gives the same
    later."""
    assert (
        cli.run([*TWO, "--set", "pp=2", "--top", "3", "--json", "--export", str(tmp_path / "now")])
        == 0
    )
    printed = capsys.readouterr()
    assert (
        "note: searched with --same tp,recompute, as megatron-lm has one value for all ranks"
        in printed.err
    )
    assert "order of the nodes: NODE_RANK 0 on" in printed.err
    text = (tmp_path / "now" / "train.sh").read_text()
    assert "--pipeline-model-parallel-layout" in text
    saved, later = tmp_path / "plan.json", ["--to", "megatron-lm", "-o", str(tmp_path / "later")]
    saved.write_text(printed.out)
    assert [stage["pool"] for stage in json.loads(printed.out)["plans"][0]["stages"]] in (
        [0, 1],
        [1, 0],
    )
    assert cli.run(["export", str(saved), *later]) == 0
    assert (tmp_path / "later" / "train.sh").read_text() == text
    assert "order of the nodes: NODE_RANK 0 on" in capsys.readouterr().err
    assert "--launcher, time: job scripts" in error_of(
        ["export", str(saved), *later, "--launcher", "slurm", "--time", "1D"], capsys
    )
    assert "gbs: of no effect with the plan in" in error_of(
        ["export", str(saved), *later, "--gbs", "3"], capsys
    )
    assert "`export` and `report` read the file of such a plan" in error_of(
        ["train", str(saved), "--dry-run"], capsys
    )
    assert "`export` and `report` read the file of such a plan" in error_of(
        ["diff", str(saved), f"{saved}#2"], capsys
    )


def test_plans_that_no_software_has_words_for_are_refused_by_name(
    tmp_path: Path, capsys: Capture
) -> None:
    stage = {
        "chip": "h100",
        "layers": 16,
        "tp": 2,
        "sp": True,
        "dp": 2,
        "mbs": 1,
        "recompute": "none",
    }
    request = {"model": "llama3-8b", "cluster": "h100:16", "seq_len": 4096, "num_gpus": 8}

    def refused(other: dict[str, object]) -> str:
        plan = {
            "layout": {"tp": 2, "pp": 2},
            "stages": [stage, stage | other],
            "chips": [{"chip": "h100", "used": 8, "idle": 0}],
        }
        (tmp_path / "plan.json").write_text(json.dumps({"request": request, "plans": [plan]}))
        return error_of(
            [
                "export",
                str(tmp_path / "plan.json"),
                "--to",
                "megatron-lm",
                "-o",
                str(tmp_path / "out"),
            ],
            capsys,
        )

    assert (
        "plan.json: a plan has a stage on a800, which is not in its place in the cluster h100:16"
        in refused({"chip": "a800"})
    )
    assert (
        "plan.json: its stages differ in tp, recompute, for which training software has one value"
        in refused({"tp": 4, "recompute": "full"})
    )


@pytest.mark.parametrize("cluster", ["local", "h100:16"])
def test_one_kind_of_chip_is_exported_as_it_was_asked(cluster: str) -> None:
    asked = PlanRequest.of({"model": "llama3-8b", "cluster": cluster, "seq_len": 4096, "gbs": 16})
    assert for_export(asked, "torchtitan") is asked
