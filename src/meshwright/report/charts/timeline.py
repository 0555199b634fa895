"""Pipeline timelines as SVG: one path per stage and kind, so that tens of thousands of operations
stay light."""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.report.charts.forms import Op, Timeline
from meshwright.report.charts.svg import WIDTH, Scale, document, legend, text, tick_words
from meshwright.report.charts.words import number

__all__ = ["KINDS", "UNITS", "draw_timeline"]

HIGH, GAP = 28.0, 8.0
"""Of a stage's row, and between two."""
LEFT = 66.0
UNITS = 40_000
"""Steps that the time axis is cut into: an operation's ends are off by no more than a fortieth of a
unit of the drawing."""
KINDS = {
    "F": ("forward", "#1f5fa8"),
    "B": ("backward", "#e08a1e"),
    "W": ("weight gradient", "#14806a"),
}


def draw_timeline(chart: Timeline) -> str:
    """Draw a row per stage; what is empty is waiting."""
    kinds = [kind for kind in KINDS if any(op.kind == kind for op in chart.ops)]
    marks = [
        (f'<rect width="12" height="12" rx="2" fill="{KINDS[kind][1]}"/>', KINDS[kind][0])
        for kind in kinds
    ]
    waiting = '<rect width="12" height="12" rx="2" class="rule"/>'
    parts, top = legend([*marks, (waiting, "waiting")], 0.0)
    top += 6
    tall = chart.stages * (HIGH + GAP)
    along = Scale(0.0, chart.step_s, start=LEFT, end=WIDTH)
    for stage in range(chart.stages):
        y = top + stage * (HIGH + GAP)
        parts.append(text(0, y + 18, f"stage {stage}", kind="soft"))
        parts.append(
            f'<rect x="{LEFT}" y="{y:.1f}" width="{WIDTH - LEFT:.1f}" height="{HIGH:.0f}"'
            ' class="rule"/>'
        )
    plot = "".join(_paths(chart, stage, kind) for stage in range(chart.stages) for kind in kinds)
    parts.append(
        f'<svg class="plot" x="{LEFT:.0f}" y="{top:.1f}" width="{WIDTH - LEFT:.0f}"'
        f' height="{tall:.1f}" viewBox="0 0 {UNITS} {tall:.1f}"'
        f' preserveAspectRatio="none">{plot}</svg>'
    )
    places = (
        f'data-y="{top + tall:.1f}" data-left="{LEFT:.0f}" data-right="{WIDTH:.0f}"'
        f' data-step="{chart.step_s!r}"'
    )
    parts.append(f'<g class="ticks" {places}>{_axis(along, top + tall)}</g>')
    parts.append(text(WIDTH, top + tall + 18, "s", kind="soft", anchor="end"))
    return document(
        top + tall + 28, parts, label=f"{chart.title}. {chart.sentence} {number(chart.step_s)} s."
    )


def _axis(along: Scale, y: float) -> str:
    marks = [(along(tick), tick_words(tick)) for tick in along.ticks if along(tick) < WIDTH - 24]
    return "".join(
        f'<path class="axis" d="M{x:.1f}'
        f' {y:.1f}v5"/>{text(x, y + 18, words, kind="soft", anchor="middle")}'
        for x, words in marks
    )


def _paths(chart: Timeline, stage: int, kind: str) -> str:
    """All operations of one kind on one stage; `data-ops` names them for tips, `chunk.microbatch`
    each."""
    ops = [op for op in chart.ops if op.stage == stage and op.kind == kind]
    if not ops:
        return ""
    y = stage * (HIGH + GAP)
    names = " ".join(f"{op.chunk}.{op.microbatch}" for op in ops)
    return (
        f'<path fill="{KINDS[kind][1]}" data-stage="{stage}" data-kind="{kind}" data-ops="{names}"'
        f' d="{_rects(ops, chart.step_s, y)}"/>'
    )


def _rects(ops: Sequence[Op], step_s: float, y: float) -> str:
    found = []
    for op in ops:
        start = round(op.start_s / step_s * UNITS)
        wide = max(1, round(op.end_s / step_s * UNITS) - start)
        found.append(f"M{start},{y:g}h{wide}v{HIGH:g}h-{wide}z")
    return "".join(found)
