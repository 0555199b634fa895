from __future__ import annotations

import pytest

from meshwright.sizing.chips import SIZES, Tried, chips_for
from meshwright.sizing.estimate import Limits

DAY_S = 86400.0


def made(chips: int) -> Tried:
    """1000 chip days that lose 1 % per doubling, at 10 dollars a chip and day."""
    chip_days = 1000 * 1.01 ** (chips.bit_length() - 4)
    return Tried(chip_days / chips * DAY_S, 10 * chip_days)


def test_a_deadline_takes_the_fewest_chips_that_keep_it() -> None:
    # 1000 chip days and a little: 64 chips take 16.1 days, 32 chips 31.9.
    assert chips_for(Limits(wall_s=20 * DAY_S), made) == 64
    assert chips_for(Limits(wall_s=32 * DAY_S, usd=1.0), made) == 32
    assert chips_for(Limits(wall_s=1.0), made) == SIZES[-1]


def test_a_budget_takes_the_most_chips_that_keep_it() -> None:
    # 8 chips cost 10,000 dollars, 16 cost 10,100, 32 cost 10,201.
    assert chips_for(Limits(usd=10_150), made) == 16
    assert chips_for(Limits(usd=10_000), made) == 8
    assert chips_for(Limits(usd=9_999), made) == 8  # the nearest to it
    assert chips_for(Limits(usd=1e9), made) == SIZES[-1]


def test_what_fits_on_no_small_cluster_takes_a_larger_one() -> None:
    def large(chips: int) -> Tried | None:
        return made(chips) if chips >= 256 else None

    assert chips_for(Limits(wall_s=900 * DAY_S), large) == 256
    assert chips_for(Limits(usd=1.0), large) == 256


def test_a_size_that_costs_less_and_is_faster_wins() -> None:
    def cheaper_at_128(chips: int) -> Tried:
        run = made(chips)
        return Tried(run.wall_s, 5_000) if chips == 128 else run

    assert chips_for(Limits(wall_s=20 * DAY_S), cheaper_at_128) == 128


@pytest.mark.parametrize("limits", [Limits(), Limits(usd=100.0)])
def test_without_a_limit_or_a_price_nothing_is_chosen(limits: Limits) -> None:
    assert chips_for(limits, lambda chips: Tried(made(chips).wall_s, None)) is None
    assert chips_for(limits, lambda chips: None) is None
