from __future__ import annotations

import pytest

from meshwright.values.errors import ConfigError
from meshwright.values.units import (
    counted,
    format_count,
    format_digits,
    format_seconds,
    parse_count,
    parse_duration,
    parse_number,
    parse_tokens,
)


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2_592_000), ("2w", 1_209_600), ("1.5d", 129_600), ("30 days", 2_592_000)],
)
def test_durations_as_people_write_them(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["1.2.3d", "30", "d", "", "5-"])
def test_a_duration_needs_its_unit(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a duration such as 30d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "thousand", "number"),
    [("8k", 1024, 8192), ("8k", 1000, 8000), ("1M", 1024, 1_048_576), ("-1", 1000, -1)],
)
def test_whole_numbers_may_have_a_suffix(text: str, thousand: int, number: int) -> None:
    assert parse_number(text, name="--seq", whole=True, thousand=thousand) == number


def test_a_number_with_commas_is_said_without() -> None:
    with pytest.raises(ConfigError, match="without commas: 8192"):
        parse_number("8,192", name="--seq", whole=True, thousand=1024)
    with pytest.raises(ConfigError, match="expected a whole number"):
        parse_number("64.5", name="--gbs", whole=True, thousand=1024)


def test_tokens_without_their_suffix_are_asked_back() -> None:
    with pytest.raises(ConfigError, match="did you mean 15B or 15T"):
        parse_tokens("15", name="--tokens")
    assert parse_tokens("15T", name="--tokens") == 15 * 10**12


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (format_count(999_700), "1M"),
        (format_count(999_400), "999k"),
        (format_count(999.7), "1k"),
        (format_seconds(0.99996), "1 s"),
        (format_seconds(0.00099996), "1 ms"),
    ],
)
def test_what_rounds_up_to_a_thousand_takes_the_next_unit(written: str, expected: str) -> None:
    assert written == expected
