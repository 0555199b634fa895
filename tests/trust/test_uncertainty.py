from __future__ import annotations

import math

import pytest

from meshwright.trust.intervals import Site, Uncertain, uncertain_constants
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.stack import find_stack

SITE = Site(pool=parse_cluster("h100:16").pools[0], stack=find_stack("megatron"))


@pytest.mark.parametrize("uncertain", uncertain_constants(), ids=lambda u: u.constant)
def test_ends_move_one_constant(uncertain: Uncertain) -> None:
    now = uncertain.value(SITE)
    assert uncertain.source and uncertain.title
    found = list(uncertain.ends(SITE))
    assert found
    for end, moved in found:
        assert moved != SITE
        assert math.isclose(uncertain.value(moved), end)
        assert end != now
        assert end >= 0


def test_shares_stay_shares() -> None:
    """Worked: 0.92 of a network's rate times 1.05 is 0.966, 1.2 times would be more than all of
    it."""
    by_name = {uncertain.constant: uncertain for uncertain in uncertain_constants()}
    network = by_name["network_link.efficiency"]
    low, high = (end for end, _ in network.ends(SITE))
    now = network.value(SITE)
    assert low == pytest.approx(0.75 * now) and high == pytest.approx(min(1.0, 1.05 * now))
    assert all(
        0 <= end <= 1
        for name in by_name
        if name.startswith("stack.")
        for end, _ in by_name[name].ends(SITE)
    )


def test_narrow_formats_move_along() -> None:
    chip = next(u for u in uncertain_constants() if u.constant == "chip.sustained_share")
    narrow = SITE.pool.node.chip.narrow_sustained_share
    for end, moved in chip.ends(SITE):
        share = moved.pool.node.chip.narrow_sustained_share
        assert (share is None) is (narrow is None)
        if share is not None and narrow is not None:
            assert share == pytest.approx(min(1.0, narrow * end / chip.value(SITE)))
