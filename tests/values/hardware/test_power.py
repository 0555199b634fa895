"""What a power limit leaves of a chip's speed."""

from __future__ import annotations

import pytest

from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.chip import FLOOR_SHARE, share_at_power


def test_on_the_voltage_floor_speed_follows_power() -> None:
    assert share_at_power(0.5, 0.8) == pytest.approx(0.4)


def test_above_the_floor_speed_follows_the_cube_root() -> None:
    assert share_at_power(0.8, 0.9**3) == pytest.approx(0.72)


def test_across_the_floor() -> None:
    """From 0.9 down to the floor of 2/3 takes (0.74...)^3 = 400/983 of the power, from there to 1/3
    half of the rest."""
    assert pytest.approx(2 / 3) == FLOOR_SHARE
    assert share_at_power(0.9, (20 / 27) ** 3 / 2) == pytest.approx(1 / 3)
    assert share_at_power(1 / 3, 2 * (27 / 20) ** 3) == pytest.approx(0.9)


def test_no_limit_lifts_a_chip_above_its_benchmark() -> None:
    assert share_at_power(0.72, 5.0) == 1.0
    assert share_at_power(0.72, 1.0) == pytest.approx(0.72)


def test_a100_cards_of_300_watts_against_their_benchmark() -> None:
    """stas00/ml-engineering: 252.9 TFLOPS of products at 300 W, 271.2 at 400 W; the runs at 400 W
    sustain 0.85 of theirs."""
    assert share_at_power(0.85, 300 / 400) == pytest.approx(0.85 * 252.9 / 271.2, rel=0.03)


@pytest.mark.parametrize(
    ("chip", "kin"),
    [
        ("h100-96", "h100"),
        ("h100-pcie", "h100"),
        ("h100-nvl", "h100"),
        ("h20", "h100"),
        ("a100-80-pcie", "a100-80"),
        ("a30", "a100-80"),
    ],
)
def test_the_catalogue_keeps_the_rule(chip: str, kin: str) -> None:
    limited, base = find_chip(chip), find_chip(kin)
    assert limited.tdp_w is not None and base.tdp_w is not None
    ratio = (
        limited.tdp_w
        / base.tdp_w
        * base.peak_flops_per_s("bf16")
        / limited.peak_flops_per_s("bf16")
    )
    assert limited.sustained_share == pytest.approx(
        share_at_power(base.sustained_share, ratio), rel=0.005
    )


@pytest.mark.parametrize("name", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x"])
def test_tpus_reach_less_the_more_they_compute_per_byte(name: str) -> None:
    """Half of the peak at 900 FLOP per byte of memory, in docs/hardware.md."""
    chip = find_chip(name)
    balance = chip.peak_flops_per_s("bf16") / chip.memory_bytes_per_s
    assert chip.sustained_share * chip.matmul_efficiency == pytest.approx(
        1 / (1 + balance / 900), rel=0.01
    )
