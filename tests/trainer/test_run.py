"""What a run tells, on real processes; needs torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="trains with torch: pip install 'meshwright[train]'")

from tests.trainer.ranks import run, write_plan


@pytest.mark.slow
def test_lines_summary_and_trace_of_a_pipeline(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, {"pp": 2})
    words = [
        "steps=4",
        "peak_tflops=0.5",
        f"metrics={tmp_path / 'lines'}",
        f"trace={tmp_path / 'trace'}",
    ]
    first, second = run(plan, words, processes=2)
    assert (first.code, second.code, first.err, second.out) == (0, 0, "", "")
    *steps, summary = first.lines
    assert [line["event"] for line in first.lines] == ["step"] * 4 + ["summary"]
    for line in steps:
        assert sum(line["phases_s"].values()) == pytest.approx(line["step_s"])
        assert set(line["phases_s"]) == {
            "other",
            "data",
            "pipeline",
            "forward",
            "backward",
            "gradient_norm",
            "optimizer",
        }
        assert line["tokens_per_s"] == pytest.approx(8 * 64 / line["step_s"])
        assert line["mfu"] == pytest.approx(line["tflops_per_gpu"] / 0.5)
        assert len(line["peak_allocated_bytes"]) == 2
    assert [line["collectives_s"] is None for line in steps] == [True, True, False, True]
    assert {"send", "receive", "all_reduce"} == set(steps[2]["collectives_s"])
    assert (summary["measured_steps"], summary["step_s"], summary["ended_by"]) == (
        1,
        steps[3]["step_s"],
        "steps",
    )
    assert summary["last_loss"] == steps[-1]["loss"]
    other = [
        json.loads(line)
        for line in (tmp_path / "lines" / "rank-1.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [line["loss"] for line in other[:-1]] == [line["loss"] for line in steps]
    for rank in (0, 1):
        assert "traceEvents" in json.loads(
            (tmp_path / "trace" / f"rank-{rank}.json").read_text(encoding="utf-8")
        )


def test_a_snapshot_of_the_allocator_is_refused_on_a_processor(tmp_path: Path) -> None:
    (alone,) = run(write_plan(tmp_path, {}), ["memory_snapshot=out"], processes=1)
    assert (alone.code, alone.out) == (2, "")
    assert (
        alone.err
        == "error: memory_snapshot=out: torch records the allocations of CUDA alone; on a processor"
        " peak_allocated_bytes is the largest resident size of each rank\n"
    )
