"""What a row leaves blank gives way where its run would not fit as told."""

from __future__ import annotations

import math

import pytest
from tests.runs.measured.examples import LLAMA, case_of

from meshwright.runs.measured.predict import Prediction, predict_rows
from meshwright.values.units import GIB

TOO_LARGE = {"pp": "1", "mbs": "4", "zero": "1"}
"""Four sequences of the model on one stage: more activations than a chip holds."""


def answer(**cells: str) -> Prediction:
    [found] = predict_rows([case_of(LLAMA, **{**TOO_LARGE, **cells})]).predictions
    return found


def test_a_row_that_says_what_it_recomputes_stays_as_told() -> None:
    told = answer(recompute="none")
    assert told.verdict == "no" and told.case.taken == ""


def test_a_blank_gives_way_and_the_time_stays_as_told() -> None:
    told, blank = answer(recompute="none"), answer(recompute="")
    assert blank.verdict != "no" and blank.used_bytes < told.used_bytes
    assert blank.step_s == pytest.approx(told.step_s)
    assert f"would need {told.used_bytes / GIB:.0f} GiB" in blank.case.taken
    assert blank.cells[-1].endswith(blank.case.taken)


def test_the_interval_reaches_from_what_was_told_to_what_was_taken() -> None:
    blank = answer(recompute="")
    low, high = blank.intervals.peak_bytes
    reach = math.log(high / low) / 2
    assert blank.case.apart.peak_memory > 0.0
    assert reach > blank.case.apart.peak_memory


def test_a_blank_that_fits_takes_nothing() -> None:
    assert answer(recompute="", mbs="1", pp="4").case.taken == ""
