"""Within how much two layouts are a tie, against the hypotheses and against published runs."""

from __future__ import annotations

import math

import pytest

from meshwright.trust.ties import serving_own, tie_frac
from meshwright.values.data import package_rows


def test_the_width_is_that_of_the_middle_hypothesis() -> None:
    rows = package_rows("trust/beliefs.csv")
    [width] = {
        math.exp(math.sqrt(2) * float(row["own"])) - 1
        for row in rows
        if math.isclose(math.exp(math.sqrt(2) * float(row["own"])) - 1, tie_frac())
    }
    own = math.log1p(width) / math.sqrt(2)
    total = sum(float(row["weight"]) for row in rows)
    below = sum(float(row["weight"]) for row in rows if float(row["own"]) < own)
    upto = sum(float(row["weight"]) for row in rows if float(row["own"]) <= own + 1e-12)
    assert below < total / 2 <= upto


def test_it_is_small_beside_what_any_two_layouts_are_off_by() -> None:
    """Two layouts of a hypothesis that share nothing differ by more than the tie's width."""
    apart = [math.sqrt(2) * math.hypot(float(r["own"]), float(r["alike"])) for r in ROWS]
    assert min(apart) > math.log1p(tie_frac())
    assert tie_frac() == pytest.approx(0.0287, abs=0.01)  # a few per cent, never a taste of 10


def test_two_pools_are_off_by_more_than_one() -> None:
    """Each is a few per cent to a few tens, of more than a hundred runs in several sets."""
    one, two, between = (
        serving_own(what) for what in ("one pool", "two pools", "one pool and two pools")
    )
    assert 0.02 < one < two < 0.4
    assert 0.02 < between < 0.4
    for row in package_rows("trust/serving_ties.csv"):
        assert int(row["runs"]) > 100
        assert int(row["sets"]) >= 8


ROWS = package_rows("trust/beliefs.csv")
