"""Machines and software that are not what was told."""

from __future__ import annotations

from tests.runs.records import measured, record

from meshwright.runs.tune import otherwise_than_told


def test_runs_that_are_all_slower_than_their_intervals_are_said_to_be_the_machine_s() -> None:
    """Predicted 2.0 s, 1.6 to 2.5."""
    slow = [record(outcome=measured(step_s)) for step_s in (4.4, 4.8, 4.6)]
    said = otherwise_than_told(slow)
    assert said is not None
    assert said.startswith("every run is slower x2.3 than predicted (x2.2 to x2.4")
    assert "meshwright profile" in said


def test_runs_that_are_all_faster_are_said_too() -> None:
    fast = [record(outcome=measured(step_s)) for step_s in (1.0, 0.8)]
    said = otherwise_than_told(fast)
    assert said is not None and said.startswith("every run is faster x2.2 than predicted")


def test_one_run_or_one_within_its_interval_says_nothing() -> None:
    slow, right = record(outcome=measured(4.4)), record(outcome=measured(2.4))
    assert otherwise_than_told([slow]) is None
    assert otherwise_than_told([slow, slow, right]) is None
    assert otherwise_than_told([slow, record(outcome=measured(1.0))]) is None
