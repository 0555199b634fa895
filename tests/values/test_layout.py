from __future__ import annotations

import pytest

from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout, parse_layout


def test_equal_neighbours_of_a_split_are_written_once() -> None:
    split = (4, 4, 4, 3, 3, 0)
    words = Layout(pp=6, layers_per_stage=split).words()
    assert words.endswith("layers_per_stage=4x3+3x2+0")
    assert parse_layout(words)["layers_per_stage"] == split
    assert parse_layout("layers_per_stage=4+4+4+3+3+0")["layers_per_stage"] == split
    with pytest.raises(ConfigError, match="expected a whole number"):
        parse_layout("layers_per_stage=1x9999999")
