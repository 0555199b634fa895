from __future__ import annotations

import pytest

from meshwright.sizing.size import Budget, classic_params, classic_seconds, compute_optimal
from meshwright.values.errors import ConfigError

DAY = 86_400.0


def budget(chips: int, days: float, tokens: float | None = 300e9, tflops: float = 140) -> Budget:
    return Budget(
        chips=chips, seconds=days * DAY, tokens=tokens, flops_per_s_per_chip=tflops * 1e12
    )


@pytest.mark.parametrize(
    ("chips", "days", "billions"), [(160, 5, 4.03), (160, 7, 5.64), (256, 10, 12.9)]
)
def test_sizes_of_the_documents_of_autoconfigurator(
    chips: int, days: float, billions: float
) -> None:
    assert classic_params(budget(chips, days), series="gpt3") == pytest.approx(
        billions * 1e9, rel=2e-3
    )


def test_gpt3_175b_takes_34_days_where_its_file_asks_for_10() -> None:
    assert classic_seconds(175e9, budget(1024, 10), series="gpt3") == pytest.approx(
        33.9 * DAY, rel=2e-3
    )


def test_mt5_is_smaller_and_slower() -> None:
    assert classic_params(budget(160, 5), series="mt5") == pytest.approx(
        0.87 * classic_params(budget(160, 5), series="gpt3")
    )
    assert classic_seconds(1e9, budget(160, 5), series="mt5") == pytest.approx(
        1.15 * classic_seconds(1e9, budget(160, 5), series="gpt3")
    )


def test_size_and_time_are_inverse() -> None:
    given = budget(160, 5)
    assert classic_seconds(
        classic_params(given, series="gpt3"), given, series="gpt3"
    ) == pytest.approx(given.seconds)


def test_without_tokens_twenty_per_parameter() -> None:
    # 8 * 20 * params**2 = chips * rate * seconds: 100 chips * 1.6 TFLOPS * 1e6 s = 1.6e20, so
    # params = 1e9
    given = Budget(chips=100, seconds=1e6, flops_per_s_per_chip=1.6e12)
    assert classic_params(given, series="gpt3") == pytest.approx(1e9)
    assert classic_seconds(1e9, given, series="gpt3") == pytest.approx(1e6)


def test_chinchilla() -> None:
    # table 3 of arXiv:2203.15556: 67 B and 1.5 T tokens for 5.76e23 FLOP, by approach 1; with 20
    # tokens a parameter 69 B and 1.4 T
    found = compute_optimal(5.76e23)
    assert found.params == pytest.approx(67e9, rel=0.04)
    assert found.tokens == pytest.approx(20 * found.params)
    assert 6 * found.params * found.tokens == pytest.approx(5.76e23)


@pytest.mark.parametrize("name", ["chips", "seconds", "tokens", "flops_per_s_per_chip"])
def test_nothing_is_no_budget(name: str) -> None:
    good = {"chips": 8, "seconds": 1.0, "tokens": 1e9, "flops_per_s_per_chip": 1e12}
    with pytest.raises(ConfigError, match=f"{name}=0: expected a positive number"):
        Budget(**(good | {name: 0}))  # type: ignore[arg-type]
