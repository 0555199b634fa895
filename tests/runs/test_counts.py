from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshwright.runs.counts import (
    cut_short,
    least_step_s,
    older_than,
    refused_record,
    timed_steps,
    too_few,
)
from meshwright.software.log import Report, steady_reports
from meshwright.values.models.catalogue import find_model
from meshwright.values.workload import Workload


def reports(*steps: int, start: int = 0) -> list[Report]:
    return [Report(step=step, step_s=2.0, start=start) for step in steps]


def test_reports_count_for_the_steps_since_the_one_before() -> None:
    """Every tenth step is told: of 1, 10, 20, 30 the first is warm-up, 29 steps are left."""
    told = reports(1, 10, 20, 30)
    assert timed_steps(told, steady_reports(told)) == 29
    assert timed_steps(reports(1, 2, 3), reports(3)) == 1
    again = [*reports(5, 6), *reports(1, 2, start=1)]
    assert timed_steps(again, again) == 4


def test_fewer_than_five_steps_are_too_few() -> None:
    assert too_few(5) is None
    assert "4 steps behind the warm-up, and 5 are the least" in str(too_few(4))


@pytest.mark.parametrize(
    ("steps", "wanted", "is_cut"),
    [
        ((1, 2), 20, True),
        (tuple(range(1, 20)), 20, True),
        (tuple(range(1, 21)), 20, False),
        ((10, 20), 25, False),
        ((10, 20), 30, True),
        ((1, 2), None, False),
        ((), 20, False),
    ],
)
def test_a_run_is_cut_short(steps: tuple[int, ...], wanted: int | None, is_cut: bool) -> None:
    said = cut_short(reports(*steps), wanted)
    assert (said is not None) is is_cut
    if is_cut:
        assert f"ends at step {max(steps)} of {wanted}" in str(said)


def test_the_least_time_of_a_step_by_hand() -> None:
    """Llama 3 8B: 7.5e9 weights in matrix products, 6 FLOPs each and token; with half the scores
    6 * 32 * 4096 * 1024. 16 sequences of 1024 on 8 x 312 TFLOPS; two thirds where all but
    adapters is frozen."""
    model = find_model("llama3-8b")
    flops = (6 * 7.505e9 + 6 * 32 * 4096 * 1024) * 16 * 1024
    work = Workload(seq_len=1024)
    known = {"gbs": 16, "num_chips": 8, "peak_flops_per_s": 312e12}
    found = least_step_s(model, work, **known)  # type: ignore[arg-type]
    assert found == pytest.approx(flops / 8 / 312e12, rel=1e-3)
    frozen = Workload(seq_len=1024, lora_rank=8, lora_targets=("linear_qkv",))
    assert least_step_s(model, frozen, **known) == pytest.approx(found * 2 / 3)  # type: ignore[arg-type]


def test_what_was_written_of_old_runs_is_judged_again() -> None:
    assert refused_record({"steps": 2, "step_s": 1.0}, 0.0) is not None
    assert refused_record({"steps": 2, "timed_steps": 20, "step_s": 1.0}, 0.0) is None
    said = str(refused_record({"steps": 9, "step_s": 1.0}, 2.0))
    assert "an MFU of 200 %, above 100 %" in said


def test_a_configuration_may_be_newer_by_a_minute(tmp_path: Path) -> None:
    log, config = tmp_path / "stdout.log", tmp_path / "run.yaml"
    log.write_text("")
    config.write_text("")
    for late_s, is_old in ((-3600, False), (50, False), (90, True)):
        os.utime(config, (log.stat().st_mtime + late_s,) * 2)
        assert (older_than([log], [config]) is not None) is is_old
    assert older_than([tmp_path / "none"], [config]) is None
    assert older_than([log], [tmp_path / "none"]) is None
