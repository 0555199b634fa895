from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from meshwright.report.columns import Column, blocks, fold, print_columns

COLUMNS = (
    Column(heading="name", justify="left"),
    Column(heading="words", justify="left", spare=2, under=True),
    Column(heading="figure"),
    Column(heading="price", spare=1),
)
ROWS = (("a", "one two three", "1.25", "3"), ("bcd", "", "10", "40"))


def printed(width: int, *, terminal: bool = True, columns: tuple[Column, ...] = COLUMNS) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=terminal, color_system=None)
    print_columns(console, columns, ROWS, more="--json has it")
    return text.getvalue()


def test_a_wide_terminal_has_all_in_columns() -> None:
    assert (
        printed(80)
        == "name  words          figure  price\na     one two three    1.25      3\nbcd            "
        "          10     40\n"
    )


def test_gaps_shrink_before_anything_goes() -> None:
    assert printed(31).splitlines()[0] == "name words         figure price"


def test_words_stand_under_their_row_where_they_have_no_room() -> None:
    assert printed(24).splitlines() == [
        "name  figure  price",
        "a       1.25      3",
        "    words one two three",
        "bcd       10     40",
    ]


def test_what_is_left_out_is_named() -> None:
    lines = printed(14).splitlines()
    assert lines[0] == "name  figure"
    assert " ".join(" ".join(lines).split()).endswith(
        "left out to fit 14 columns: price; --json has it"
    )


def test_columns_that_stay_come_in_blocks() -> None:
    stay = tuple(Column(heading=column.heading) for column in COLUMNS)
    assert printed(20, columns=stay).splitlines() == [
        *("name         words", "   a one two three", " bcd"),
        *("", "name figure price", "   a   1.25     3", " bcd     10    40"),
    ]


def test_a_pipe_gets_all_whatever_its_width() -> None:
    assert printed(10, terminal=False) == printed(80)


@given(st.integers(12, 40))
def test_every_value_is_printed_or_named(width: int) -> None:
    text = printed(width)
    flat = " ".join(text.split())
    assert "1.25" in text
    assert "one two three" in flat
    assert "…" not in text
    assert "40" in text or "price" in text


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(10, 30))
def test_blocks_hold_every_key_once_within_the_limit(widths: list[int], limit: int) -> None:
    parts = blocks(range(len(widths)), widths, limit=limit, gap=1)
    assert [key for part in parts for key in part] == list(range(len(widths)))
    assert all(sum(widths[key] + 1 for key in part) <= limit for part in parts)


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("short", "short"),
        (
            "Days        180  (80 % interval 127 to 263)",
            "Days        180  (80 % interval 127\n            to 263)",
        ),
        (
            "Plan tp=4,cp=2,pp=4,vpp=20,dp=32,mbs=1,gbs=1024",
            "Plan\n            tp=4,cp=2,pp=4,vpp=20,dp=32,mbs=1,gbs=1024",
        ),
    ],
)
def test_fold_sets_further_lines_in_and_keeps_words_whole(line: str, folded: str) -> None:
    assert fold(line, width=36, indent=12) == folded
