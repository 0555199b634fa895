"""Words of links."""

from __future__ import annotations

import pytest

from meshwright.search.titles import link_words
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.layout import Layout


@pytest.mark.parametrize(
    ("chips", "ep", "straddles"),
    [(256, 64, True), (256, 36, False), (64, 64, False), (144, 72, False)],
)
def test_groups_that_do_not_divide_a_rack_straddle_it(chips: int, ep: int, straddles: bool) -> None:
    """Racks of 72 filled one after another: the second group of 64 has 8 ranks in the first rack
    and 56 in the second; groups of 36 and 72 divide a rack, and 64 chips are in one."""
    pool = parse_cluster(f"gb200:{chips}").pools[0]
    words = link_words("ep link", Layout(dp=chips, ep=ep, etp=1), pool)
    assert words.startswith(f"nvlink5: {ep} ranks within a domain of 72")
    assert words.endswith("groups straddle two domains") == straddles
