from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli import run

PLAN = [
    "serving",
    "plan",
    "llama3.1-8b",
    "--cluster",
    "h100:2",
    "--input-len",
    "1000",
    "--output-len",
    "200",
]
SIMULATE = [
    "serving",
    "simulate",
    "llama3.1-8b",
    "--cluster",
    "h100:2",
    "--layout",
    "tp=1",
    "--requests",
    "50",
]


def test_a_plan_as_a_table_says_what_its_figures_mean(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--ttft", "500", "--tpot", "20", "--top", "3"]) == 0
    shown = capsys.readouterr().out
    assert "TPOT: mean of (finish - first token) / (output tokens - 1)" in shown
    assert "new tokens only, per GPU in use" in shown
    assert "Pareto front" in shown
    assert "weights: bf16, as the checkpoint has them" in shown


def test_on_two_kinds_of_chips_every_deployment_says_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "--cluster",
        "h100:1,l40s:1",
        "--mode",
        "aggregated",
        "--weights",
        "bf16",
        "--cache",
        "bf16",
        "--concurrency",
        "4",
    ]
    assert run(["serving", "plan", "llama3.1-8b", *words]) == 0
    shown = capsys.readouterr().out
    assert "1 x (tp=1) h100" in shown
    assert "1 x (tp=1) l40s" in shown


def test_a_plan_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--weights", "bf16", "--mode", "aggregated", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [plan["rank"] for plan in found["plans"]] == list(range(1, len(found["plans"]) + 1))
    assert {plan["weights"] for plan in found["plans"]} == {"bf16"}
    assert set(found["definitions"]) >= {"ttft", "tpot", "throughput"}
    assert found["plans"][0]["parts"][0]["layout"]["tp"] in (1, 2)


def test_limits_that_nothing_keeps_exit_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--ttft", "1", "--tpot", "0.1"]) == 1
    shown = capsys.readouterr().out
    assert "no deployment keeps the limits; the nearest:" in shown
    assert "least TTFT:" in shown
    assert "least TPOT:" in shown
    assert run(["serving", "plan", "llama3.1-405b", "--cluster", "h100:1"]) == 1
    assert "GiB short of one request" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serving", "plan", "--cluster", "h100:8"], "give a model's name"),
        (["serving", "plan", "llama3.1-8b"], "give --cluster, such as h100:8"),
        (["serving", "plan", "llama9-8b", "--cluster", "h100:8"], "is no known model"),
        (["serving", "plan", "llama3.1-8b", "--cluster", "h900:8"], "is no known chip"),
        ([*PLAN, "--engine", "vlm"], "did you mean 'vllm'"),
        ([*PLAN, "--weights", "fp7"], "is no known quantisation"),
        ([*PLAN, "--speculate", "x"], "expected tokens drafted"),
        ([*PLAN, "--mode", "static", "--prefix-hits", "0.5"], "no effect on static batches"),
        ([*PLAN, "--chunk", "0"], "expected 1 token or more"),
        (
            ["serving", "simulate", "llama3.1-8b", "--cluster", "h100:1"],
            "give one of --rate, --concurrency and --trace",
        ),
        ([*SIMULATE, "--rate", "0"], "expected a positive number of requests per second"),
        ([*SIMULATE, "--rate", "1", "--layout", "tq=1"], "'tq' is no known axis"),
        ([*SIMULATE, "--rate", "1", "--layout", "tp=x"], "expected a whole number"),
        ([*SIMULATE[:-2], "--trace", "absent.csv"], "cannot be read"),
        ([*SIMULATE, "--rate", "1", "--output-len", "-1"], "output_len=-1: expected 1 to"),
        (
            [*SIMULATE, "--rate", "1", "--input-len", "99999999999999999999"],
            "input_len=99999999999999999999: expected 1 to",
        ),
        ([*SIMULATE, "--rate", "1", "--seed", "-1"], "seed=-1: expected 0 or more"),
        ([*SIMULATE, "--concurrency", "0"], "concurrency=0: expected 1 client or more"),
        ([*SIMULATE, "--concurrency", "-5"], "concurrency=-5: expected 1 client or more"),
        (
            ["serving", "simulate", "llama3.1-8b", "--cluster", "h100:1,h200:1", "--rate", "1"],
            "on one kind of chip",
        ),
        ([*PLAN, "--target-rate", "1", "--latency"], "give one of target_rate and latency"),
    ],
)
def test_bad_input_is_one_line_and_two(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_plan_at_a_rate_has_percentiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--rate", "5"]) == 0
    shown = capsys.readouterr().out
    assert "under Poisson arrivals" in shown
    assert all(
        f"{name} {share}" in shown
        for name in ("TTFT ms", "TPOT ms", "e2e s")
        for share in ("p50", "p90", "p99")
    )
    assert run([*PLAN, "--rate", "1e6"]) == 1
    assert "most requests per second" in capsys.readouterr().out


def test_a_load_has_percentiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SIMULATE, "--rate", "5"]) == 0
    shown = capsys.readouterr().out
    assert all(
        word in shown
        for word in ("p50", "p90", "p99", "TTFT", "TPOT", "end to end", "2 GPUs in 2 copies")
    )
    assert run([*SIMULATE, "--concurrency", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 50


def test_the_same_seed_is_the_same_load(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for seed in ("1", "1", "2"):
        assert run([*SIMULATE, "--rate", "5", "--seed", seed]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]


def test_a_trace_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "requests.csv"
    trace.write_text("sent_s,input_len,output_len\n10,500,20\n5,400,10\n11,300,1\n")
    replay = [
        "serving",
        "simulate",
        "llama3.1-8b",
        "--cluster",
        "h100:2",
        "--layout",
        "tp=1",
        "--trace",
        str(trace),
    ]
    assert run([*SIMULATE, "--trace", str(trace), "--input-len", "9"]) == 2
    assert "--requests, --input-len: of no effect with --trace" in capsys.readouterr().err
    assert run([*replay, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 3
    trace.write_text("a,b\n1,2\n")
    assert run(replay) == 2
    assert "sent_s, input_len and output_len" in capsys.readouterr().err
