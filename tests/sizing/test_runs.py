from __future__ import annotations

import json
from typing import Any

import pytest

import meshwright
from meshwright.cli import run
from meshwright.sizing.duration import Footprint, Reliability, Training
from meshwright.sizing.estimate import Limits

ASKED: dict[str, Any] = {"model": "llama3-8b", "cluster": "h100:64", "seq_len": 8192, "gbs": 256}


def test_the_parts_of_a_run_sum_and_follow_from_the_plan() -> None:
    training = Training(
        tokens=1_000_000_000_000,
        eval_interval=500,
        eval_steps=6,
        reliability=Reliability(
            chip_mtbf_s=1e15, restart_s=1.0, save_interval_s=3600.0, write_bytes_per_s_per_node=1e9
        ),
        footprint=Footprint(power_share=1.0, pue=1.0, kg_co2_per_kwh=0.5),
    )
    found = meshwright.estimate(training=training, usd_per_hour=2.0, **ASKED)
    run, plan = found.run, found.plan
    assert run is not None and plan is not None
    assert run.steps == -(-(10**12) // (256 * 8192))
    assert run.train_s == pytest.approx(run.steps * plan.step_s)
    assert run.eval_s == pytest.approx((run.steps // 500) * 6 * plan.step_s / 3)
    assert run.wall_s == pytest.approx(run.train_s + run.eval_s + run.overhead_s)
    # no failures: for every hour of training one checkpoint of 14 bytes a parameter over 8 nodes
    written_s = 14 * 8_030_261_248 / 8e9
    assert run.goodput.write_s == pytest.approx(written_s, rel=1e-3)
    assert run.wall_s == pytest.approx(
        (run.train_s + run.eval_s) * (3600 + written_s) / 3600, rel=1e-6
    )
    hours = 64 * run.wall_s / 3600
    assert run.usd == pytest.approx(2.0 * hours)
    assert run.kwh == pytest.approx(0.7 * hours)  # 700 W a chip
    assert run.kg_co2 == pytest.approx(0.35 * hours)


def test_checkpoints_are_as_large_as_the_software_writes_them() -> None:
    """torchtitan keeps fp32 weights and Adam's states, 12 bytes a parameter; the same figure as
    `ckpt plan`'s."""
    asked = ASKED | {"stack": "torchtitan"}
    run = meshwright.estimate(training=10**12, **asked).run
    assert run is not None
    assert run.goodput.checkpoint_bytes == pytest.approx(12 * 8_030_261_248, rel=1e-3)
    assert run.goodput.checkpoint_bytes == meshwright.ckpt_plan(**asked).size.total_bytes


def test_a_broken_deadline_names_the_cluster_that_keeps_it() -> None:
    short = meshwright.estimate(training=10**12, **ASKED).run
    assert short is not None
    found = meshwright.estimate(training=10**12, limits=Limits(wall_s=short.wall_s / 3), **ASKED)
    assert len(found.broken) == 1 and "days, the limit is" in found.broken[0]
    assert found.nearest is not None and found.nearest.chips == 256
    assert found.nearest.wall_s <= short.wall_s / 3
    assert all(other.wall_s > short.wall_s / 3 for other in found.others if other.chips < 256)


def test_a_broken_budget() -> None:
    found = meshwright.estimate(training=10**12, limits=Limits(usd=1.0), usd_per_hour=2.0, **ASKED)
    assert "costs" in found.broken[0]
    assert found.nearest is None and found.others


def test_a_limit_that_holds_looks_no_further() -> None:
    found = meshwright.estimate(training=10**12, limits=Limits(wall_s=1e9, usd=1e12), **ASKED)
    assert not found.broken and not found.others


def test_what_does_not_fit_has_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "estimate",
        "llama3-405b",
        "--cluster",
        "h100:8",
        "--seq",
        "8192",
        "--gbs",
        "64",
        "--tokens",
        "1T",
    ]
    assert run(words) == 1
    assert "nothing fits" in capsys.readouterr().out
    assert run([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["run"] is None


def test_sizes_of_the_seed_case(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "size",
        "--cluster",
        "a100-80:160",
        "--days",
        "5",
        "--tokens",
        "300B",
        "--tflops",
        "140",
    ]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["classic"]["params"] == pytest.approx(4.03e9, rel=2e-3)
    best = found["best"]
    assert 0.95 * 5 <= best["run"]["days"] <= 5
    assert best["plan"]["fits"] == "yes"
    assert (
        max(
            size["params"]
            for size in found["tried"]
            if size["days"] is not None and size["days"] <= 5
        )
        == best["params"]
    )
    assert (
        any(size["days"] is None or size["days"] > 5 for size in found["tried"])
        or best["run"]["days"] > 0.98 * 5
    )


def test_compute_optimal_sizes_train_on_twenty_tokens_a_parameter() -> None:
    found = meshwright.size(cluster="h100:64", days=5, series="llama3", seq_len=4096)
    assert found.best is not None and found.best.run is not None and found.optimal is not None
    assert found.best.run.tokens == pytest.approx(20 * found.best.shape.params)
    assert found.optimal.params == pytest.approx(found.best.shape.params, rel=0.35)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["size", "--cluster", "h100:8", "--days", "0"], "days=0: expected a positive number"),
        (
            ["size", "--cluster", "h100:8", "--days", "1", "--tflops", "0"],
            "tflops=0: expected a positive number",
        ),
        (
            ["size", "--cluster", "h100:8", "--days", "1", "--series", "llama33"],
            "did you mean 'llama3'",
        ),
        (
            ["size", "--cluster", "h100:8", "--days", "1", "--tokens", "x"],
            "tokens=x: expected a number such as",
        ),
        (
            ["estimate", "llama3-8b", "--cluster", "h100:8", "--seq", "8192", "--tokens", "0"],
            "--tokens=0: expected 1 or more",
        ),
        (
            ["estimate", "llama3-8b", "--cluster", "h100:8", "--seq", "8192", "--tokens", "1e400"],
            "tokens=1e400: expected a number such as",
        ),
        (
            [
                "estimate",
                "llama3-8b",
                "--cluster",
                "h100:8",
                "--seq",
                "8192",
                "--tokens",
                "1T",
                "--max-cost",
                "nan",
            ],
            "max_cost=nan: expected",
        ),
        (
            [
                "estimate",
                "llama3-8b",
                "--cluster",
                "gaudi3:8",
                "--seq",
                "8192",
                "--tokens",
                "1T",
                "--max-cost",
                "9",
            ],
            "no price of gaudi3",
        ),
        (
            [
                "estimate",
                "llama3-8b",
                "--cluster",
                "h100:8",
                "--seq",
                "8192",
                "--tokens",
                "1T",
                "--restart",
                "10",
            ],
            "restart=10: expected a duration",
        ),
        (
            [
                "estimate",
                "llama3-8b",
                "--cluster",
                "h100:8",
                "--seq",
                "8192",
                "--tokens",
                "1T",
                "--pue",
                "0",
            ],
            "pue=0: expected a positive",
        ),
        (
            [
                "estimate",
                "llama3-8b",
                "--cluster",
                "h100:8",
                "--seq",
                "8",
                "--tokens",
                "1T",
                "--usd-per-hour",
                "1",
                "--usd-per-node-hour",
                "8",
            ],
            "give one of them",
        ),
    ],
)
def test_bad_requests_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err and captured.err.count("\n") == 1


def test_pages_say_their_constants(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "estimate",
                "llama3-8b",
                "--cluster",
                "h100:64",
                "--seq",
                "8192",
                "--gbs",
                "256",
                "--tokens",
                "1T",
                "--usd-per-node-hour",
                "24",
            ]
        )
        == 0
    )
    page = capsys.readouterr().out
    for words in (
        "50,000 h a chip",
        "15 min to restart",
        "0.625 GB/s a node",
        "chip-hours at 3 USD",
        "0.429 kg/kWh",
        "8 FLOP per parameter and token",
    ):
        assert words in page
    assert run(["size", "--cluster", "a100-80:160", "--days", "5", "--tokens", "300B"]) == 0
    page = capsys.readouterr().out
    for words in ("4.03B", "at 140 TFLOPS a chip", "learning rate", "Chinchilla", "Sensitivity"):
        assert words in page
