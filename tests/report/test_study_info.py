from __future__ import annotations

from typing import Any

import pytest
from tests.report.answers import LAYOUT

from meshwright.report.parts.study import (
    history_info,
    predicted_info,
    regret_info,
    runs_info,
    study_answer_info,
    study_part,
    study_tiles_info,
)
from meshwright.values.units import GIB


def run_of(number: int, *, predicted_s: float = 1.0, **more: Any) -> dict[str, Any]:
    predicted = {
        "step_s": predicted_s,
        "step_interval_s": [0.8, 1.5],
        "peak_bytes": 40 * GIB,
        "peak_interval_bytes": [30 * GIB, 60 * GIB],
    }
    return {
        "run_id": f"run-{number}",
        "number": number,
        "layout": {**LAYOUT, "mbs": number},
        "predicted": predicted,
        "chosen_because": f"reason {number}",
        "state": "finished",
        "ran_s": 90.0,
        **more,
    }


def measured(step_s: float) -> dict[str, Any]:
    return {
        "step_s": step_s,
        "step_low_s": 0.9 * step_s,
        "step_high_s": 1.1 * step_s,
        "tokens_per_s": 1000 / step_s,
        "steps": 8,
    }


FAILURE = {
    "failure_class": "cuda_oom",
    "message": "out of memory",
    "evidence": "CUDA out of memory",
    "step": None,
}
STUDY: dict[str, Any] = {
    "study": "tune-llama",
    "facts": {"model": "llama3-8b", "num_chips": 16, "chip": "h100"},
    "runs": [
        run_of(1, measured=measured(1.2)),
        run_of(2, failure=FAILURE, state="failed"),
        run_of(3, measured=measured(0.6)),
        run_of(4, measured=measured(1.0), predicted_s=1.1),
        run_of(5, state="submitted"),
    ],
    "stop": "none of the rest is likely to be faster",
    "gpu_hours": 1.6,
}


def test_the_answer_names_the_fastest_and_how_far_its_prediction_was() -> None:
    words = study_answer_info(STUDY)
    assert words.startswith(
        "llama3-8b on 16 x h100: the fastest of 3 measured, 1 failed is tp=4, sp=1, pp=2"
    )
    assert (
        "0.600 s a step, x0.60 of its prediction, 1,670 tokens/s. It stopped: none of the rest"
        in words
    )


def test_the_best_so_far_falls_and_never_rises() -> None:
    best, shown, failed = history_info(STUDY).groups
    assert [(point.x, point.y) for point in best.points] == [
        (1, 1.2),
        (2, 1.2),
        (3, 0.6),
        (4, 0.6),
        (5, 0.6),
    ]
    assert [(point.x, point.detail) for point in shown.points] == [
        (1, "reason 1"),
        (3, "reason 3"),
        (4, "reason 4"),
    ]
    assert [(point.x, point.y, point.detail) for point in failed.points] == [
        (2, 1.0, "failed: cuda_oom; reason 2")
    ]
    assert history_info(STUDY).sentence.startswith("The fastest was run 3 of 5")


def test_predictions_stand_with_their_intervals_over_what_was_measured() -> None:
    chart = predicted_info(STUDY)
    # off by 1/1.2 - 1 = -17 %, 1/0.6 - 1 = 67 %, 1.1/1 - 1 = 10 %: the middle is 17 %; 0.6 lies
    # below its interval
    assert chart.sentence == "Median error 16.7 %; 2 of 3 lie inside their 80 % interval."
    first = chart.groups[0].points[0]
    assert (first.x, first.y, first.low, first.high) == (1.2, 1.0, 0.8, 1.5)
    assert study_tiles_info(STUDY)[2].value == "2 of 3"


def test_every_run_is_in_the_table_and_the_fastest_is_marked() -> None:
    grid = runs_info(STUDY)
    assert grid.marked == 2
    assert [row[0] for row in grid.rows] == [1, 2, 3, 4, 5]
    keys = [column.key for column in grid.columns]
    assert grid.rows[0][keys.index("off")] == pytest.approx(1.2)
    assert grid.rows[1][keys.index("failure")] == "cuda_oom: out of memory CUDA out of memory"
    assert grid.rows[4][keys.index("measured_s")] is None


def test_a_study_without_a_finished_run_says_so() -> None:
    record = {**STUDY, "runs": [run_of(1, state="submitted")], "stop": ""}
    part = study_part(record, "x", None)
    assert part.answer == "llama3-8b on 16 x h100: no run has finished (0 measured, 0 failed)."
    assert part.charts == ()


def test_regret_is_against_the_fastest_that_was_measured() -> None:
    """Runs of 1.2, then 0.6 s: after the first the best is 100 % longer than the fastest."""
    chart = regret_info(STUDY)
    best, own = chart.groups
    assert [(point.x, point.y) for point in best.points][:2] == [(1, pytest.approx(100)), (3, 0)]
    assert [point.named for point in own.points][:2] == [False, True]
    assert chart.sentence.startswith("After run 3 of ")
