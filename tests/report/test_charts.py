from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.memory import MEMORY_TERMS
from meshwright.cost.step import TIME_TERMS
from meshwright.report.charts.draw import alone, chart_markdown, draw
from meshwright.report.charts.forms import (
    Axis,
    Bar,
    Chart,
    Group,
    Guide,
    Heat,
    HeatCell,
    Op,
    Point,
    Points,
    Series,
    Stack,
    Timeline,
)
from meshwright.report.charts.labels import placed_labels
from meshwright.report.charts.svg import (
    MEMORY_COLOURS,
    NARROW,
    TIME_COLOURS,
    Scale,
    cell_words,
    number,
    ramp,
    text_width,
)
from meshwright.report.parts.computed import stage_time_info
from meshwright.report.parts.part import apart

STACK = Stack(
    key="time",
    title="Time <by> term",
    sentence="Two bars & a line.",
    unit="s",
    series=(
        Series(key="a", title="a", colour="#1f5fa8"),
        Series(key="b", title="b", colour="#f2c879"),
    ),
    bars=(
        Bar(label="one", values=(3.0, 1.0), low=3.0, high=6.0),
        Bar(label="two", values=(1.0, 0.0)),
    ),
    limit=5.0,
    limit_words="5 s",
)
POINTS = Points(
    key="front",
    title="Front",
    sentence="A front.",
    x=Axis(key="x", title="x", log=True),
    y=Axis(key="y", title="y"),
    groups=(
        Group(
            title="seen",
            colour="#1f5fa8",
            points=(
                Point(x=1, y=2, label="p"),
                Point(x=100, y=3, label="q", low=2, high=4, named=True),
            ),
        ),
        Group(
            title="best",
            colour="#c2500b",
            mark="diamond",
            joined="steps",
            points=(Point(x=10, y=2.5, label="r"),),
        ),
    ),
    guides=(Guide(title="roof", points=((1, 1), (100, 4))),),
)
HEAT = Heat(
    key="cells",
    title="Cells",
    sentence="Four cells.",
    row_axis="tp",
    column_axis="pp",
    rows=(1, 2),
    columns=(1, 2),
    cells=(
        (
            HeatCell(value=None, reason="needs 90 GiB", short="+11"),
            HeatCell(value=2.0, detail="dp=4"),
        ),
        (HeatCell(value=4.0), HeatCell(value=None, reason="heads", possible=False)),
    ),
    value_title="step, s",
)
STEPS = Timeline(
    key="timeline",
    title="Pipeline",
    sentence="Two stages.",
    stages=2,
    step_s=4.0,
    ops=(
        Op(stage=0, kind="F", chunk=0, microbatch=0, start_s=0.0, end_s=1.0),
        Op(stage=1, kind="F", chunk=0, microbatch=0, start_s=1.0, end_s=2.0),
        Op(stage=1, kind="B", chunk=0, microbatch=0, start_s=2.0, end_s=3.0),
        Op(stage=0, kind="B", chunk=0, microbatch=0, start_s=3.0, end_s=4.0),
    ),
)
CHARTS: tuple[Chart, ...] = (STACK, POINTS, HEAT, STEPS)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: chart.key)
def test_every_chart_is_well_formed_in_a_page_and_alone_and_names_itself(chart: Chart) -> None:
    drawn = ElementTree.fromstring(draw(chart))
    assert drawn.get("role") == "img"
    assert drawn.get("aria-label", "").startswith(f"{chart.title}. {chart.sentence}")
    whole = alone(chart)
    ElementTree.fromstring(whole)
    assert "var(--" not in whole  # programs that draw SVG know no variables


def test_parts_of_a_bar_are_as_wide_as_their_shares_and_touch() -> None:
    rects = [
        (float(x), float(wide))
        for x, wide in re.findall(
            r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="26"', draw(STACK)
        )
    ]
    (x1, wide1), (x2, wide2), (_, wide3) = rects
    assert wide1 == pytest.approx(3 * wide2, abs=0.3)
    assert wide1 == pytest.approx(3 * wide3, abs=0.3)
    assert x1 + wide1 == pytest.approx(x2, abs=0.2)


def test_the_best_cell_is_framed_and_those_without_a_value_say_why() -> None:
    drawn = draw(HEAT)
    assert drawn.count('class="frame"') == 1
    assert "<title>tp 1, pp 1\nneeds 90 GiB</title>" in drawn
    assert drawn.count('class="hatch"') == 2  # the key's, and the cell that memory forbids
    assert "<title>tp 2, pp 2\nheads</title>" in drawn


def test_operations_lie_where_they_ran() -> None:
    paths = re.findall(
        r'data-stage="(\d)" data-kind="(\w)" data-ops="([\d. ]+)" d="([^"]+)"', draw(STEPS)
    )
    assert paths[1] == ("0", "B", "0.0", "M30000,0h10000v28h-10000z")
    assert len(paths) == 4


def test_each_stage_sums_to_the_step_with_its_waiting() -> None:
    stack = stage_time_info(STEPS)
    assert [part.key for part in stack.series] == ["forward", "backward", "waiting"]
    assert [bar.values for bar in stack.bars] == [(1.0, 1.0, 2.0), (1.0, 1.0, 2.0)]
    assert all(bar.total == STEPS.step_s for bar in stack.bars)


def test_numbers_of_a_chart_are_those_of_its_table() -> None:
    assert STACK.data.rows == (("one", 3.0, 1.0, 4.0, 3.0, 6.0), ("two", 1.0, 0.0, 1.0, None, None))
    assert POINTS.data.rows[1] == ("seen", "q", 100, 3, 2, 4)
    assert HEAT.data.rows[0] == (1, 1, None, "", "needs 90 GiB")
    assert STEPS.data.rows[0] == (0, "F", 0, 0, 0.0, 1.0)


def test_markdown_has_the_title_the_sentence_and_the_numbers() -> None:
    assert (
        chart_markdown(STACK)
        == "## Time <by> term\n\nTwo bars & a line.\n\n| bar | a | b | total, s | low, 80 % | high,"
        " 80 % |\n| --- | ---: | ---: | ---: | ---: | ---: |\n| one | 3.000 | 1.000 | 4.000 |"
        " 3.000 | 6.000 |\n| two | 1.000 | 0 | 1.000 | - | - |\n"
    )


@pytest.mark.parametrize(
    ("value", "digits", "words"),
    [
        (16.6507, 3, "16.7"),
        (983.98, 3, "984"),
        (16384.0, 3, "16,400"),
        (0.0123, 2, "0.012"),
        (43.0, 3, "43.0"),
        (1.5e-7, 3, "1.5e-07"),
    ],
)
def test_numbers_have_their_digits_and_never_an_exponent_where_people_need_none(
    value: float, digits: int, words: str
) -> None:
    assert number(value, digits=digits) == words


def test_cells_write_what_is_missing_as_a_dash_and_counts_whole() -> None:
    assert [
        cell_words(v, d)
        for v, d in ((None, 3), (True, None), (29190, 9), (29190, None), ("x", None))
    ] == [*("-", "yes", "29,190", "29190", "x")]


@given(st.floats(1e-6, 1e9), st.floats(1.001, 1e6), st.booleans())
def test_an_axis_has_ticks_within_its_ends_and_in_order(
    low: float, ratio: float, log: bool
) -> None:
    scale = Scale(low, low * ratio, start=0.0, end=100.0, log=log)
    places = [scale(tick) for tick in scale.ticks]
    assert places == sorted(places)
    assert all(-1e-3 <= place <= 100.001 for place in places)
    assert len(places) <= 30


def lab(colour: tuple[float, float, float]) -> tuple[float, float, float]:
    """CIE Lab of linear sRGB under D65."""
    r, g, b = colour
    x, y, z = (
        0.4124 * r + 0.3576 * g + 0.1805 * b,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        0.0193 * r + 0.1192 * g + 0.9505 * b,
    )
    fx, fy, fz = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (max(0.0, x) / 0.9505, max(0.0, y), max(0.0, z) / 1.089)
    )
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


# Machado, Oliveira and Fernandes 2009 (IEEE TVCG 15:6), severity 1.0, on linear sRGB.
SIGHT = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
SEEN_APART = 10.0
"""Difference in CIE Lab (1976) that nobody overlooks between two areas that touch."""


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    ("terms", "colours"),
    [(TIME_TERMS, TIME_COLOURS), (MEMORY_TERMS, MEMORY_COLOURS)],
    ids=["time", "memory"],
)
def test_parts_that_touch_are_told_apart_by_every_kind_of_sight(
    terms: tuple[str, ...], colours: dict[str, str], sight: str
) -> None:
    def seen(colour: str) -> tuple[float, float, float]:
        linear = [((int(colour[i : i + 2], 16) / 255 + 0.055) / 1.055) ** 2.4 for i in (1, 3, 5)]
        r, g, b = (sum(m * c for m, c in zip(row, linear, strict=True)) for row in SIGHT[sight])
        return lab((r, g, b))

    listed = [(term, colours[term]) for term in terms]
    near = {
        f"{a} {b}": sum((p - q) ** 2 for p, q in zip(seen(first), seen(second), strict=True)) ** 0.5
        for far in (1, 2)  # a term between two others may be nothing
        for (a, first), (b, second) in zip(listed, listed[far:], strict=False)
    }
    assert {pair: round(gap) for pair, gap in near.items() if gap < SEEN_APART} == {}


def test_the_scale_of_a_map_grows_darker_step_by_step() -> None:
    light = [sum(int(ramp(k / 10)[i : i + 2], 16) for i in (1, 3, 5)) for k in range(11)]
    assert light == sorted(light, reverse=True)


def test_names_of_points_lie_on_no_mark_and_on_no_other_name() -> None:
    points = [(100.0 + 3 * k, 100.0 + 2 * k, f"operator {k}") for k in range(6)]
    plane = (0.0, 0.0, 900.0, 300.0)
    labels = placed_labels(points, [(x, y) for x, y, _ in points], plane)
    assert [label.words for label in labels] == [words for *_, words in points]
    rects = []
    for label in labels:
        wide = text_width(label.words)
        left = {"start": label.x, "end": label.x - wide, "middle": label.x - wide / 2}[label.anchor]
        rects.append((left, label.y - 10, left + wide, label.y + 2))
    for place, one in enumerate(rects):
        assert one[0] >= 0
        assert one[2] <= 900
        for other in rects[:place]:
            beside = one[2] <= other[0] or other[2] <= one[0]
            assert beside or one[3] <= other[1] or other[3] <= one[1]
        for x, y, _ in points:
            assert not (one[0] < x < one[2] and one[1] < y < one[3])


def test_what_all_bars_have_is_cut_short_and_the_table_has_it_whole() -> None:
    bars = (Bar(label="one", values=(9.0, 2.0)), Bar(label="two", values=(10.0, 1.0)))
    stack = apart(replace(STACK, bars=bars, limit=None))
    assert stack.shared == (9.0, 1.0)
    assert [row[1:3] for row in stack.data.rows] == [(9.0, 2.0), (10.0, 1.0)]
    drawn = draw(stack)
    assert "the same in all: 10.00 s" in drawn
    assert drawn.count('class="cut"') == 2
    same = replace(stack, bars=bars[:1] * 2, shared=())
    assert apart(same).shared == ()


def test_a_narrow_page_has_the_sums_in_sight() -> None:
    drawn = draw(STACK, NARROW)
    assert f'viewBox="0 0 {NARROW:.0f} ' in drawn
    ends = re.findall(
        rf'<text x="{NARROW:.1f}" y="[\d.]+" class="strong" text-anchor="end">', drawn
    )
    assert len(ends) == len(STACK.bars)
