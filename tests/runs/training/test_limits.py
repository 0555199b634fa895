from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.platforms.registry import find_runner, runners
from meshwright.runs.training.request import (
    default_margin_s,
    limits_of,
    needed_margin_s,
    written,
)
from meshwright.software.folders import TimeForm
from meshwright.values.errors import ConfigError
from meshwright.values.units import DAY_S, HOUR_S, MINUTE_S, parse_duration

FIVE_DAYS = 5 * DAY_S


def test_the_walk_through_of_five_days() -> None:
    """5D on Base Command, and 4:23:30:00 in the software: docs of NVIDIA's SlimPajama
    walk-through."""
    limits = limits_of(FIVE_DAYS, needed_s=120, stops=True)
    assert (limits.platform_s, limits.framework_s, limits.margin_s) == (432_000, 430_200, 1_800)
    assert written(430_200, "days:hours:minutes:seconds") == "04:23:30:00"
    assert parse_duration("4:23:30:00") == 430_200


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("days-hours:minutes:seconds", "5-00:00:00"),
        ("nDnHnMnS", "5D"),
        ("days:hours:minutes:seconds", "05:00:00:00"),
        ("seconds", "432000"),
        ("minutes", "7200"),
        ("decimal minutes", "7200"),
    ],
)
def test_five_days_in_every_form(form: TimeForm, text: str) -> None:
    assert written(FIVE_DAYS, form) == text


@pytest.mark.parametrize("text", ["5D", "5d", "5-00:00:00", "5:00:00:00", "120h", "4d24h"])
def test_forms_are_read_alike(text: str) -> None:
    assert parse_duration(text) == FIVE_DAYS


def test_ten_hours() -> None:
    assert parse_duration("10h") == 10 * HOUR_S
    assert written(10 * HOUR_S, "days-hours:minutes:seconds") == "0-10:00:00"
    assert written(10 * HOUR_S, "nDnHnMnS") == "10H"
    limits = limits_of(10 * HOUR_S, needed_s=60, stops=True)
    assert limits.framework_s == 9 * HOUR_S + 30 * MINUTE_S


@given(st.integers(1, 60 * DAY_S))
def test_what_is_written_is_read_back(seconds: int) -> None:
    assert parse_duration(written(seconds, "days-hours:minutes:seconds")) == seconds
    assert parse_duration(written(seconds, "nDnHnMnS")) == seconds
    assert parse_duration(written(seconds, "days:hours:minutes:seconds")) == seconds


def test_margins() -> None:
    """Two writes of 20 minutes and a step of 30 s are 2,430 s, and ten batches forward 100 s more;
    half an hour is too little."""
    assert needed_margin_s(write_s=1200, step_s=30, eval_steps=0) == 2430
    assert needed_margin_s(write_s=1200, step_s=30, eval_steps=10) == 2530
    assert default_margin_s(FIVE_DAYS, needed_s=2430) == 41 * MINUTE_S
    assert default_margin_s(FIVE_DAYS, needed_s=10) == 30 * MINUTE_S
    assert default_margin_s(2 * HOUR_S, needed_s=10) == 6 * MINUTE_S
    assert default_margin_s(100, needed_s=3) == 5


@given(st.integers(60, 30 * DAY_S), st.integers(0, 3 * HOUR_S))
def test_limits_are_ordered_or_refused(limit_s: int, needed_s: int) -> None:
    try:
        limits = limits_of(limit_s, needed_s=needed_s, stops=True)
    except ConfigError as error:
        assert "none to train" in str(error)
        return
    assert limits.framework_s is not None
    assert 0 < limits.framework_s < limits.platform_s
    assert limits.platform_s - limits.framework_s == limits.margin_s >= limits.needed_s


def test_software_without_a_clock_has_the_platforms_limit_alone() -> None:
    limits = limits_of(HOUR_S, needed_s=10, stops=False)
    assert limits.framework_s is None
    assert limits.steps_s == HOUR_S


def test_whole_minutes_need_a_minute() -> None:
    assert written(119, "minutes") == "1"
    with pytest.raises(ConfigError, match="whole minutes"):
        written(59, "minutes")


def test_every_platform_says_where_its_limit_stands() -> None:
    rows = [find_runner(name) for name in runners()]
    said = {row.launcher: row.limit.format(time=written(10 * HOUR_S, row.form)) for row in rows}
    assert said["slurm"] == "#SBATCH --time=0-10:00:00"
    assert said["bcp"] == "--total-runtime 10H"
    assert said["k8s"] == "activeDeadlineSeconds: 36000"
