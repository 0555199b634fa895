from __future__ import annotations

from meshwright.report.layout_words import inline_words
from meshwright.values.layout import Layout


def test_a_split_of_many_unlike_numbers_is_told() -> None:
    unlike = Layout(tp=2, pp=56, vpp=2, layers_per_stage=(1, 2) * 56)
    assert inline_words(unlike).endswith("layers_per_stage=(112 numbers, which --json has)")
    assert "tp=2" in inline_words(unlike)


def test_a_split_of_equal_runs_stays_whole() -> None:
    even = Layout(pp=112, layers_per_stage=(1,) * 100 + (2,) * 12)
    assert inline_words(even) == even.words()
    assert inline_words(even).endswith("layers_per_stage=1x100+2x12")
