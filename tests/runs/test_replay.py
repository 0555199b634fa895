"""Measured runs in place of a cluster."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from meshwright.cli import run
from meshwright.runs.belief import Prior
from meshwright.runs.forecasts import Options, slopes_and_axes
from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.replay import SMALLEST_GROUP, forecasts_of, replay, sets_of

TRUTH = Path(__file__).resolve().parents[2] / "truth"


def options(predicted: list[float], *, own: float = 1e-4) -> Options:
    size = len(predicted)
    return Options(
        step=Prior(mean=np.log(predicted), shared=np.full((size, size), 0.04), own=own),
        fill=Prior(mean=np.full(size, -1.0), shared=np.full((size, size), 0.01), own=0.01),
        axes=np.arange(size, dtype=float)[:, None],
    )


def test_right_predictions_need_one_run() -> None:
    """All steps are twice as long as predicted, which is common to them."""
    found = replay([2.0, 2.4, 3.0], options([1.0, 1.2, 1.5]), confidence=0.9)
    assert (found.runs_to_2_percent, found.stopped_after, found.regret_frac) == (1, 1, 0.0)
    assert found.stated_confidence >= 0.9


def test_regret_is_what_the_best_of_the_runs_loses() -> None:
    """The second is predicted far slower and is in truth the fastest: a sure belief never tries it
    before it stops, and finds it when it goes on."""
    found = replay([2.0, 1.0], options([1.0, 3.0]), confidence=0.9)
    assert (found.stopped_after, found.regret_frac) == (1, 1.0)
    assert found.runs_to_2_percent == 2


def test_running_out_of_memory_costs_a_run() -> None:
    found = replay([math.inf, 1.1, 2.0], options([1.0, 1.1, 2.0]), confidence=0.9)
    assert found.runs_to_2_percent == 2


def test_sets_agree_in_all_but_the_layout_and_are_large_enough() -> None:
    with (TRUTH / "cn_gpu_training.csv").open(newline="") as file:
        rows = tuple(csv.DictReader(file))
    found = list(sets_of(TruthTable("cn_gpu_training", rows)))
    assert [one.column for one in found] == ["xtuner_h800_qwen3-235b_256"]
    assert len(found[0].cases) >= SMALLEST_GROUP


def test_a_set_may_hold_runs_of_several_softwares() -> None:
    """Some of nanotron's jobs compared their collectives before each was sent, which is a software
    of its own."""
    with (TRUTH / "nanotron_ultrascale.csv").open(newline="") as file:
        rows = tuple(row for row in csv.DictReader(file) if "1.34b_16gpu" in row["group"])
    forecasts = forecasts_of(next(sets_of(TruthTable("nanotron_ultrascale", rows))))
    stacks = [forecast.case.stack_name for forecast in forecasts]
    some = [forecasts[stacks.index(stack)] for stack in sorted(set(stacks))]
    assert len(some) == 2
    slopes, _ = slopes_and_axes(some)
    for row, one in zip(slopes, some, strict=True):
        alone, _ = slopes_and_axes([one])
        assert row.tolist() == alone[0].tolist()
        assert 0.5 < row[0] < 1.0  # most of a step is computing


def test_the_command_prints_what_users_judge_by(capsys: pytest.CaptureFixture[str]) -> None:
    table = str(TRUTH / "cn_gpu_training.csv")
    assert run(["tune", "--replay", table, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["sets"]
    assert found["layouts"] == 9 and found["stopped_after"] <= 9
    assert 0 < found["stated_confidence"] <= 1 and found["regret_frac"] >= 0
    for words, message in (
        (["--group", "nobody"], "'nobody' is no known group"),
        (["--seq", "4096"], "leave seq_len out"),
        (["--confidence", "0.2"], "expected 0.5 or more"),
    ):
        assert run(["tune", "--replay", table, *words]) == 2
        assert message in capsys.readouterr().err
    assert run(["tune", "tiny-llama", "--cluster", "local", "--group", "x"]) == 2
    assert "--group has no effect without --replay" in capsys.readouterr().err
