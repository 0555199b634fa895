from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from meshwright.runs.loads.readers import read_results
from meshwright.values.errors import ConfigError

VLLM = {
    **{
        "backend": "vllm",
        "model_id": "m",
        "request_rate": "inf",
        "max_concurrency": 8,
        "duration": 4.0,
        "completed": 2,
        "failed": 1,
    },
    **{
        "total_input_tokens": 300,
        "total_output_tokens": 5,
        "request_goodput": 0.25,
        "mean_ttft_ms": 20.0,
        "median_ttft_ms": 20.0,
    },
    **{
        "p99_ttft_ms": 30.0,
        "mean_tpot_ms": 7.0,
        "median_tpot_ms": 7.0,
        "p99_tpot_ms": 9.0,
        "mean_itl_ms": 7.0,
        "median_itl_ms": 6.0,
    },
    **{"p99_itl_ms": 9.0, "output_throughput": 1.25},
}
DETAILS = {
    "ttfts": [0.1, 0.3, 0.0],
    "itls": [[0.2, 0.4], [0.5], []],
    "output_lens": [3, 2, 0],
    "errors": ["", "", "timed out"],
}


def summary(mean: float, total: float = 0.0) -> dict[str, Any]:
    tails = {"p50": mean, "p90": 2 * mean, "p99": 3 * mean}
    return {
        "successful": {"mean": mean, "median": mean, "total_sum": total, "percentiles": tails},
        "errored": None,
    }


GUIDELLM = {
    "metadata": {"version": 2, "guidellm_version": "0.8.1"},
    "benchmarks": [
        {
            "config": {"strategy": {"kind": "concurrent", "streams": 4}},
            "duration": 10.0,
            "metrics": {
                "request_totals": {"successful": 20, "errored": 2, "incomplete": 1, "total": 23},
                "request_latency": summary(1.5),
                "prompt_token_count": summary(100.0, total=2000.0),
                "output_token_count": summary(50.0, total=1000.0),
                "time_to_first_token_ms": summary(200.0),
                "time_per_output_token_ms": summary(30.0),
                "inter_token_latency_ms": summary(26.0),
                "request_goodput": None,
            },
        },
        {
            "config": {"strategy": {"kind": "poisson", "rate": 2.5, "max_concurrency": 64}},
            "duration": 10.0,
            "metrics": {
                "request_totals": {"successful": 25, "errored": 0, "incomplete": 0, "total": 25},
                "request_latency": summary(2.0),
                "prompt_token_count": summary(100.0, total=2500.0),
                "output_token_count": summary(50.0, total=1250.0),
                "time_to_first_token_ms": summary(300.0),
                "time_per_output_token_ms": summary(40.0),
                "inter_token_latency_ms": summary(34.0),
                "request_goodput": summary(1.5),
            },
        },
    ],
}


def metric(unit: str, avg: float) -> dict[str, Any]:
    return {"unit": unit, "avg": avg, "p50": avg, "p90": 2 * avg, "p99": 3 * avg}


AIPERF = {
    **{"schema_version": "1.4", "aiperf_version": "0.13.0", "is_complete": True},
    "input_config": {
        "phases": [{"name": "warmup", "concurrency": 1}, {"name": "profiling", "concurrency": 16}]
    },
    **{
        "request_count": {"unit": "requests", "avg": 40.0},
        "error_request_count": {"unit": "requests", "avg": 3.0},
    },
    **{
        "benchmark_duration": {"unit": "sec", "avg": 8.0},
        "total_isl": {"unit": "tokens", "avg": 4000.0},
    },
    **{"total_osl": {"unit": "tokens", "avg": 1600.0}, "time_to_first_token": metric("ms", 50.0)},
    **{
        "inter_token_latency": metric("ms", 12.0),
        "inter_chunk_latency": metric("ms", 24.0),
        "request_latency": metric("ms", 518.0),
    },
    "goodput": {"unit": "requests/sec", "avg": 4.5},
}


def read(tmp_path: Path, content: Any) -> Any:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(content))
    return read_results(path)


def test_vllm_bench(tmp_path: Path) -> None:
    (found,) = read(tmp_path, VLLM)
    figures = found.figures
    assert (found.tool, found.name) == ("vllm bench", "concurrency=8")
    assert (figures.requests, figures.failed, figures.tokens_per_s, figures.good_per_s) == (
        2,
        1,
        1.25,
        0.25,
    )
    assert figures.ttft_s.p99 == pytest.approx(0.03)
    assert math.isnan(figures.ttft_s.p90)  # was not asked for, and is not made up
    assert math.isnan(figures.e2e_s.mean)


def test_vllm_bench_with_details(tmp_path: Path) -> None:
    (found,) = read(tmp_path, {**VLLM, **DETAILS})
    figures = found.figures
    assert figures.ttft_s.mean == pytest.approx(0.2)
    assert figures.tpot_s.mean == pytest.approx(
        (0.3 + 0.5) / 2
    )  # 0.6 s over two tokens, 0.5 s over one
    assert figures.e2e_s.mean == pytest.approx((0.7 + 0.8) / 2)
    assert figures.itl_s.mean == pytest.approx(1.1 / 3)
    assert figures.first_error == "timed out"


def test_guidellm(tmp_path: Path) -> None:
    closed, poisson = read(tmp_path, GUIDELLM)
    assert (closed.tool, closed.name, poisson.name) == ("guidellm", "concurrency=4", "rate=2.5")
    assert (closed.figures.requests, closed.figures.failed, closed.figures.tokens_per_s) == (
        20,
        2,
        100.0,
    )
    assert closed.figures.tpot_s.mean == pytest.approx(0.026)  # without the first token, as ours
    assert closed.figures.e2e_s.p90 == 3.0  # already in seconds
    assert (closed.figures.good_per_s, poisson.figures.good_per_s) == (None, 1.5)


def test_aiperf(tmp_path: Path) -> None:
    (found,) = read(tmp_path, AIPERF)
    figures = found.figures
    assert (found.tool, found.name) == ("aiperf", "concurrency=16")
    assert (figures.requests, figures.failed, figures.duration_s, figures.tokens_per_s) == (
        40,
        3,
        8.0,
        200.0,
    )
    assert figures.tpot_s.mean == pytest.approx(0.012)
    assert figures.itl_s.p99 == pytest.approx(0.072)
    assert figures.good_per_s == 4.5


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"hello": 1}, "no result of `vllm bench serve`, guidellm or aiperf"),
        ([1], "no result of"),
        ({"benchmarks": []}, "guidellm without a load"),
        ({"benchmarks": [{"metrics": {}}]}, "guidellm without what it should hold"),
        (
            {**AIPERF, "is_complete": False, "incomplete_reason": "stalled"},
            "the run is not complete: stalled",
        ),
        (
            {"completed": 1, "total_output_tokens": 2},
            r"vllm bench without what it should hold \(KeyError: 'duration'\)",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, content)


def test_no_json_and_no_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    path.write_text("a,b\n")
    with pytest.raises(ConfigError, match="no JSON"):
        read_results(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_results(tmp_path / "nothing.json")
