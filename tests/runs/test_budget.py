"""What a study may cost, as people write it."""

from __future__ import annotations

import math

import pytest

from meshwright.runs.budget import Budget, read_budget
from meshwright.values.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("50gpuh", 50, "gpuh"),
        ("0.5 GPU-hours", 0.5, "gpuh"),
        ("$200", 200, "usd"),
        ("1,500 usd", 1500, "usd"),
        ("6runs", 6, "runs"),
        ("1 run", 1, "runs"),
    ],
)
def test_words(text: str, amount: float, unit: str) -> None:
    found = read_budget(text)
    assert (found.amount, found.unit) == (amount, unit)
    assert read_budget(str(found)) == found


@pytest.mark.parametrize("text", ["50", "gpuh", "$6runs", "50 days", "", "-3runs", "nan"])
def test_what_has_no_unit_or_another_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected GPU-hours, dollars or runs, as 50gpuh"):
        read_budget(text)


@pytest.mark.parametrize("text", ["0gpuh", "2.5runs"])
def test_amounts_that_buy_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=f"budget={text}"):
        read_budget(text)


def test_hours_of_a_chip() -> None:
    assert Budget(amount=10, unit="usd").gpu_hours(2.5) == 4
    assert Budget(amount=10, unit="gpuh").gpu_hours(None) == 10
    assert Budget(amount=10, unit="runs").gpu_hours(None) == math.inf
    with pytest.raises(ConfigError, match="no price of these chips is known"):
        Budget(amount=10, unit="usd").gpu_hours(None)
