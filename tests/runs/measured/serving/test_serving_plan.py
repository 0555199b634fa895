from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tests.runs.measured.serving.examples import ROW, SERVED

from meshwright.cli import run
from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.serving_answers import ServingPrediction
from meshwright.runs.measured.serving_plan import predict_as_planned
from meshwright.serving.search import plan

POOLS = {
    "model": "deepseek-v3",
    "gpu": "H200",
    "mode": "disagg",
    "n_gpus": "32",
    "tp": "",
    "concurrency": "64",
    **{f"{pool}_tp": "8" for pool in ("prefill", "decode")},
    **{f"{pool}_ep": "8" for pool in ("prefill", "decode")},
    **{f"{pool}_workers": "2" for pool in ("prefill", "decode")},
}


def planned(**changes: str) -> ServingPrediction | str:
    found = predict_as_planned([TruthTable(name="t", rows=(ROW | changes,))])
    if found.predictions:
        return found.predictions[0]
    return found.unanswered[0].reason


def priced(**changes: str) -> ServingPrediction:
    found = planned(**changes)
    assert isinstance(found, ServingPrediction), found
    return found


def test_a_row_costs_what_the_plan_says_of_its_worker() -> None:
    whole = plan(
        model="llama3.1-70b",
        cluster="h100:4",
        input_len=1024,
        output_len=1024,
        weights=("fp8",),
        cache=("bf16",),
        modes=("aggregated",),
        concurrency=16,
    )
    tp4 = next(option for option in whole.options if option.parts[0].worker.tp == 4)
    found = priced()
    assert (found.ttft_s, found.tpot_s) == (tp4.ttft_s, tp4.tpot_s)


def test_nothing_of_the_benchmark_moves_it() -> None:
    plain = priced()
    told = priced(date="2026-05-01", engine_version="0.19.0", ttft_ms="5", note="InferenceX")
    assert (plain.ttft_s, plain.tpot_s) == (told.ttft_s, told.tpot_s)


def test_requests_under_way_on_two_pools_are_the_clients() -> None:
    found = priced(**POOLS)
    assert found.ttft_s is not None and found.tpot_s is not None
    few = priced(**(POOLS | {"concurrency": "8"}))
    assert few.tpot_s is not None and few.tpot_s < found.tpot_s
    # Answers alone, with the prompts' share of the time taken off: 64 clients on two workers.
    e2e_s = found.ttft_s + 1023 * found.tpot_s
    assert found.tokens_per_s_per_chip == pytest.approx(64 * 1024 / e2e_s / 32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (POOLS | {"prefill_workers": ""}, "not told"),
        ({"measure_kind": "static_batch_e2e", "batch_size": "4"}, "static batches"),
        ({"concurrency": "100000"}, "the cache has room for"),
    ],
)
def test_what_the_plan_is_not_asked(changes: dict[str, str], reason: str) -> None:
    found = planned(**changes)
    assert isinstance(found, str)
    assert reason in found


def test_maximum_load_takes_what_the_cache_holds() -> None:
    most = priced(measure_kind="max_load_inflight_throughput", concurrency="")
    some = priced()
    assert most.tokens_per_s_per_chip is not None and some.tokens_per_s_per_chip is not None
    assert most.tokens_per_s_per_chip > some.tokens_per_s_per_chip


def test_validate_says_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.csv"
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*SERVED])
        writer.writeheader()
        writer.writerow(SERVED)
    page = tmp_path / "page.md"
    assert run(["serving", "validate", str(table), "-o", str(page), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    asked = priced()
    assert asked.tpot_s is not None
    error = abs(1000 * asked.tpot_s / 13.19 - 1)
    assert found["as_planned"]["mine"]["tpot_ms"]["mape"] == pytest.approx(error, abs=1e-4)
    text = page.read_text()
    assert text.index("## As `serving plan` prices it") < text.index("## With the benchmark's")
