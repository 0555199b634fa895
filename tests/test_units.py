from __future__ import annotations

import pytest

from meshwright.units import counted


@pytest.mark.parametrize(("number", "words"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (2000, "2,000 files")])
def test_one_thing_is_singular(number: int, words: str) -> None:
    assert counted(number, "file") == words
