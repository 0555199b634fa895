from __future__ import annotations

import pytest

from meshwright.values.errors import ConfigError
from meshwright.values.units import counted, format_digits, format_seconds, parse_count


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (2000, "2,000 files")]
)
def test_one_thing_is_singular(number: int, words: str) -> None:
    assert counted(number, "file") == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(0.01234, "0.0123"), (999.4, "999"), (999.6, "1,000"), (3782.4, "3,782"), (50_000, "50,000")],
)
def test_large_numbers_have_no_exponent(number: float, words: str) -> None:
    assert format_digits(number) == words
    assert format_seconds(3600) == "3,600 s"


@pytest.mark.parametrize("text", ["1e400", "1e300T", "-1", "", "3 B B"])
def test_a_count_beyond_numbers_is_bad_input(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a number such as"):
        parse_count(text)
