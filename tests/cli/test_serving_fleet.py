from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.runs.loads.test_traces import AZURE, MOONCAKE

from meshwright.cli import run

PLACE = ["serving", "plan", "llama3.1-8b", "--cluster", "h100:4"]


@pytest.fixture
def azure(tmp_path: Path) -> str:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    return str(path)


def test_a_fleet_as_a_table(azure: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--trace", azure, "--ttft-p99", "5000", "--usd-per-hour", "2"]
    assert run([*PLACE, *words]) == 0
    said = capsys.readouterr().out
    assert said.startswith("fleet: 1 copy of tp=1 on h100, bf16 weights, bf16 cache: 1 GPU\n")
    assert "cost: 48 USD a day" in said
    assert "azure.csv: 3 requests in 1 s, 3 a second, 2699 tokens of prompt and 15 of" in said
    assert [line.split()[:2] for line in said.splitlines()[5:8]] == [
        ["TTFT", "ms"],
        ["TPOT", "ms"],
        ["e2e", "s"],
    ]


def test_a_fleet_as_json_with_a_router_that_knows_caches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(MOONCAKE)
    words = ["--trace", str(path), "--router", "cache-aware", "--ttft", "5000", "--goodput", "1"]
    assert run([*PLACE, *words, "--layout", "tp=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["request"]["router"] == "cache-aware"
    assert found["fleet"]["chips"] == 2
    assert found["seen"]["good_frac"] == 1.0
    # 1008 of the second prompt's tokens; the last is worked on, and with it its block of 16
    assert found["seen"]["prefix_hit_frac"] == pytest.approx(1008 / 2049)
    assert found["hours"][0]["requests"] == found["hours"][0]["simulated"] == 2


def test_a_limit_that_nothing_keeps(azure: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLACE, "--trace", azure, "--ttft-p99", "1"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("no fleet keeps the limits: the chips hold ")
    assert "ttft p99 is " in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--router", "round-robin"], "--router: of no effect without --trace"),
        (["--ttft-p95", "10", "--layout", "tp=1"], "--ttft-p95, --layout: of no effect without"),
        (["--trace", "AZURE", "--ttft", "1", "--rate", "3"], "--rate: of no effect with --trace"),
        (["--trace", "AZURE", "--ttft", "1", "--input-len", "3"], "--input-len: of no effect with"),
        (["--trace", "AZURE", "--ttft", "1", "--mode", "static"], "--mode static: under a trace"),
        (
            ["--trace", "AZURE", "--ttft", "1", "--router", "random"],
            "no known value of --router; known: cache-",
        ),
        (["--host-cache-gib", "9"], "--host-cache-gib: of no effect without --trace"),
        (["--trace", "AZURE", "--ttft", "1", "--host-cache-gib", "9"], "does not name blocks"),
        (["--trace", "AZURE", "--ttft", "1", "--host-cache-gib", "-9"], "expected 0 GiB or more"),
        (["--trace", "AZURE"], "needs a limit on how long requests wait"),
        (["--trace", "/nowhere.csv", "--ttft", "1"], "/nowhere.csv: cannot be read"),
        (["--trace", "AZURE", "--ttft", "1", "--layout", "tp=8"], "tp=8 needs 8 chips; there are"),
    ],
)
def test_mistakes_are_one_line(
    azure: str, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*PLACE, *(azure if word == "AZURE" else word for word in words)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert len(said.err.strip().splitlines()) == 1
