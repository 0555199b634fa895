"""Timelines: the operations of a pipeline, a row per stage, over a strip of how busy each is.

To show one elsewhere: `draw_timeline(timeline)` is an SVG that needs `chart_css()`, and
`page/timeline.js` (`pictures_script()` of `report.page`), which moves its window:
`meshwrightPictures.timeline(drawn)`. It opens on `Timeline.opening_s`; without the script it stays
there. `parts.computed.timeline_info(plan, problem)` makes the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshwright.report.charts.forms import Op, Timeline
from meshwright.report.charts.svg import (
    NARROW,
    WIDTH,
    Scale,
    document,
    legend,
    number,
    text,
    tick_words,
)

__all__ = ["KINDS", "UNITS", "draw_timeline"]

soft = partial(text, kind="soft")
MOST_HIGH, LEAST_HIGH, ALL_HIGH = 28.0, 8.0, 460.0
"""Of a stage's row at the most and at the least, and of all rows where they are more."""
TIMELINE_LEFT = 66.0
MOST_DRAWN, MOST_OPENED, MOST_NARROW = 8_000, 20_000, 2_000
"""Operations that are drawn one by one in a step, in its opening, and in the opening on a narrow
page. Where they are more it is drawn how busy stages are: 20,000 are 0.6 MB."""
STRIP_HIGH, STRIP_ROWS = 9.0, 16
"""Of a row of the strip, and how many there are at the most: more stages share one."""
UNITS = 40_000
"""Steps that the time axis is cut into: an operation's ends are off by no more than a fortieth of a
unit of the drawing."""
KINDS = {
    "F": ("forward", "#1f5fa8"),
    "B": ("backward", "#e08a1e"),
    "W": ("weight gradient", "#14806a"),
}


def draw_timeline(chart: Timeline, wide: float = WIDTH) -> str:
    """Draw a row per stage; what is empty is waiting. Below, how busy each is in the whole step."""
    kinds = [kind for kind in KINDS if any(op.kind == kind for op in chart.ops)]
    opening = UNITS if chart.opening_s is None else _unit(chart.opening_s, chart)
    ops, from_unit = _drawn_ops(chart, opening, wide)
    marks = [
        (f'<rect width="12" height="12" rx="2" fill="{KINDS[kind][1]}"/>', KINDS[kind][0])
        for kind in kinds
        if ops
    ]
    if from_unit < UNITS:
        marks.append(('<rect y="4" width="12" height="8" class="busy"/>', "share that works"))
    waiting = '<rect width="12" height="12" rx="2" class="rule"/>'
    parts, top = legend([*marks, (waiting, "waiting")], 0.0, wide)
    top += 6
    pitch, high = _pitch(chart)
    tall = chart.stages * pitch
    for stage in range(chart.stages):
        y = top + stage * pitch
        if stage % max(1, round(13 / pitch)) == 0:
            parts.append(soft(0, y + high / 2 + 4, f"stage {stage}"))
        parts.append(
            f'<rect x="{TIMELINE_LEFT}" y="{y:.1f}"'
            f' width="{wide - TIMELINE_LEFT:.1f}" height="{high:.1f}" class="rule"/>'
        )
    plot = "".join(
        _path(chart, stage, kind, own)
        for stage in range(chart.stages)
        for kind in kinds
        for group in ops
        if (own := [op for op in group if op.stage == stage and op.kind == kind])
    )
    if from_unit < UNITS:
        plot += "".join(_behind(chart, stage, from_unit) for stage in range(chart.stages))
    parts.append(
        f'<svg class="plot" x="{TIMELINE_LEFT:.0f}" y="{top:.1f}"'
        f' width="{wide - TIMELINE_LEFT:.0f}"'
        f' height="{tall:.1f}" viewBox="0 0 {opening} {tall:.1f}"'
        f' preserveAspectRatio="none">{plot}</svg>'
    )
    shown = Scale(0.0, chart.opening_s or chart.step_s, start=TIMELINE_LEFT, end=wide)
    places = (
        f'data-y="{top + tall:.1f}" data-left="{TIMELINE_LEFT:.0f}" data-right="{wide:.0f}"'
        f' data-step="{chart.step_s!r}" data-high="{high:.1f}" data-open="{opening}"'
    )
    parts.append(f'<g class="ticks" {places}>{_timeline_axis(shown, top + tall, wide)}</g>')
    parts.append(soft(wide, top + tall + 18, "s", anchor="end"))
    strip, bottom = _strip(chart, top + tall + 34, opening, wide)
    label = f"{chart.title}. {chart.sentence} {number(chart.step_s)} s."
    return document(bottom, [*parts, *strip], label=label, wide=wide)


def _pitch(chart: Timeline) -> tuple[float, float]:
    """How far rows are apart, and how high one is: less in deep pipelines."""
    pitch = max(LEAST_HIGH, min(MOST_HIGH + 8, ALL_HIGH / chart.stages))
    return pitch, min(MOST_HIGH, 0.8 * pitch)


def _unit(seconds: float, chart: Timeline) -> int:
    return max(1, min(UNITS, round(seconds / chart.step_s * UNITS)))


def _strip(chart: Timeline, top: float, opening: int, wide: float) -> tuple[list[str], float]:
    """How busy stages are over the whole step, higher where more; a frame round what is shown."""
    if not chart.density:
        return [], top - 4
    a_row = -(-chart.stages // STRIP_ROWS)
    rows = [chart.density[at : at + a_row] for at in range(0, chart.stages, a_row)]
    parts = [soft(0, top + 4, "the whole step")]
    top += 12
    parts.append(soft(0, top + 0.5 * len(rows) * STRIP_HIGH + 4, "busy"))
    room = wide - TIMELINE_LEFT
    for place, group in enumerate(rows):
        base = top + (place + 1) * STRIP_HIGH - 1
        means = [sum(column) / len(group) for column in zip(*group, strict=True)]
        piece = room / len(means)
        levels = "".join(f"V{base - share * (STRIP_HIGH - 2):.1f}h{piece:.2f}" for share in means)
        parts.append(f'<path class="busy" d="M{TIMELINE_LEFT} {base:.1f}{levels}V{base:.1f}z"/>')
    tall = len(rows) * STRIP_HIGH
    parts.append(
        f'<rect class="window" x="{TIMELINE_LEFT}" y="{top - 2:.1f}"'
        f' width="{room * opening / UNITS:.1f}" height="{tall + 4:.1f}"/>'
    )
    parts.append(soft(TIMELINE_LEFT, top + tall + 17, "0"))
    end = f"{number(chart.step_s)} s"
    parts.append(soft(wide, top + tall + 17, end, anchor="end"))
    return parts, top + tall + 26


def _timeline_axis(along: Scale, y: float, wide: float) -> str:
    marks = [(along(tick), tick_words(tick)) for tick in along.ticks if along(tick) < wide - 24]
    return "".join(
        f'<path class="axis" d="M{x:.1f} {y:.1f}v5"/>{soft(x, y + 18, words, anchor="middle")}'
        for x, words in marks
    )


def _drawn_ops(chart: Timeline, opening: int, wide: float) -> tuple[tuple[list[Op], ...], int]:
    """Operations that are drawn one by one, those of the opening apart, so that paper needs no
    others; and where in their place it is drawn how busy stages are."""
    end = chart.opening_s or chart.step_s
    first, behind = ([op for op in chart.ops if (op.start_s < end) == own] for own in (True, False))
    narrow = wide <= NARROW
    if len(first) > (MOST_NARROW if narrow else MOST_OPENED) and chart.density:
        return (), 0
    if behind and chart.density and (narrow or len(chart.ops) > MOST_DRAWN):
        return (first,), opening
    return (first, behind), UNITS


def _behind(chart: Timeline, stage: int, from_unit: int) -> str:
    """How busy a stage is from there on, in place of its operations."""
    pitch, high = _pitch(chart)
    base, shares = stage * pitch + high, chart.density[stage]
    piece = UNITS / len(shares)
    first = int(from_unit / piece) + (from_unit > 0)
    levels = "".join(f"V{base - share * high:.1f}h{piece:.0f}" for share in shares[first:])
    return f'<path class="busy" d="M{first * piece:.0f} {base:.1f}{levels}V{base:.1f}z"/>'


def _path(chart: Timeline, stage: int, kind: str, ops: Sequence[Op]) -> str:
    pitch, high = _pitch(chart)
    names = " ".join(f"{op.chunk}.{op.microbatch}" for op in ops)
    return (
        f'<path fill="{KINDS[kind][1]}" data-stage="{stage}" data-kind="{kind}" data-ops="{names}"'
        f' d="{_rects(ops, chart, stage * pitch, high)}"/>'
    )


def _rects(ops: Sequence[Op], chart: Timeline, y: float, high: float) -> str:
    found = []
    for op in ops:
        start = round(op.start_s / chart.step_s * UNITS)
        wide = max(1, round(op.end_s / chart.step_s * UNITS) - start)
        found.append(f"M{start},{y:.4g}h{wide}v{high:.4g}h-{wide}z")
    return "".join(found)
