"""The report of a training: its loss, and where its time went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.training import training_folder

from meshwright.api.report import find_chart, report_parts
from meshwright.report.charts.forms import Points, Stack
from meshwright.report.parts.training import training_part
from meshwright.runs.training.progress import training_record


def test_goodput_by_hand(tmp_path: Path) -> None:
    """Job 1 does 50 steps of 2 s in 150 s. Job 2 begins where job 1 ended and takes 210 s: 10 steps
    again, 50 new ones, 90 s of the rest. Goodput is 200 of 360 s."""
    record = training_record(training_folder(tmp_path / "train"))
    assert [
        (job["job"], job["new_s"], job["again_s"], job["rest_s"]) for job in record["parts"]
    ] == [(1, 100.0, 0.0, 50.0), (2, 100.0, 20.0, 90.0)]
    assert record["goodput"] == pytest.approx(200 / 360)
    assert record["done_steps"] == 100
    assert [one["again"] for one in record["series"] if one["job"] == 2][:3] == [5, 5, 0]


def test_the_pictures_have_the_record_s_figures(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    training_folder(folder)
    [part] = report_parts([folder])
    assert [chart.key for chart in part.charts] == ["loss", "goodput", "speed"]
    loss, goodput = find_chart([part], "loss"), find_chart([part], "goodput")
    assert isinstance(loss, Points)
    assert isinstance(goodput, Stack)
    assert loss.groups[0].points[0].y == pytest.approx(9.75)
    assert [point.label for point in loss.groups[1].points] == ["job 1", "job 2"]
    assert goodput.unit == "min"
    assert [bar.label for bar in goodput.bars] == ["all jobs", "job 1", "job 2"]
    assert sum(goodput.bars[0].values) == pytest.approx(360 / 60)
    assert "100 of 100 steps by 2 jobs, loss 9.75 at first and 5.00 now." in part.answer
    assert "Goodput is 55.6 %" in part.answer


def test_what_train_printed_finds_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    training_folder(folder)
    printed = {"training": str(folder), "done_steps": 100, "jobs": []}
    (tmp_path / "state.json").write_text(json.dumps(printed))
    [part] = report_parts([tmp_path / "state.json"])
    assert part.kind == "training"
    (tmp_path / "gone.json").write_text(json.dumps({**printed, "training": str(tmp_path / "no")}))
    [other] = report_parts([tmp_path / "gone.json"])
    assert other.kind == "values"


def test_before_the_first_step_it_says_so() -> None:
    record: dict[str, Any] = {
        "training": "train-llama",
        "model": "llama3-8b",
        "cluster": "h100:16",
        "total_steps": None,
        "done_steps": None,
        "predicted_step_s": 2.0,
        "goodput": None,
        "series": [],
        "parts": [],
    }
    part = training_part(record, "train", None)
    assert part.answer == "train-llama: no step yet, 0 jobs sent."
    assert part.charts == ()
