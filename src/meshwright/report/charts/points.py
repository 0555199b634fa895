"""Points in a plane, with the lines that they are held against."""

from __future__ import annotations

from functools import partial

from meshwright.report.charts.forms import Group, Guide, Point, Points
from meshwright.report.charts.labels import placed_labels
from meshwright.report.charts.svg import (
    NARROW,
    WIDTH,
    Scale,
    document,
    legend,
    number,
    scale_of,
    text,
    text_width,
    tick_words,
    tipped,
)

__all__ = ["draw_points"]

soft = partial(text, kind="soft")
POINTS_HIGH = 340.0
"""Of the plane."""
POINTS_LEFT, NARROW_LEFT, RIGHT = 76.0, 52.0, 24.0
SIZE = 5.0
"""Of a mark, from its middle."""


def draw_points(chart: Points, wide: float = WIDTH) -> str:
    """Draw axes, guides, then groups in their order, so that the last lies on top."""
    entries = [
        (f'<g transform="translate(6 6)">{_mark(group, 0, 0)}</g>', group.title)
        for group in chart.groups
        if group.points
    ]
    dash = '<path class="limit" d="M0 6h14"/>'
    parts, top = legend([*entries, *((dash, guide.title) for guide in chart.guides)], 0.0, wide)
    top += 28
    left = POINTS_LEFT if wide > NARROW else NARROW_LEFT
    every = [point for group in chart.groups for point in group.points]
    lines = [corner for guide in chart.guides for corner in guide.points]
    xs = [point.x for point in every] + [x for x, _ in lines]
    ends = [value for point in every for value in (point.y, point.low, point.high)]
    ys = [value for value in ends if value is not None] + [y for _, y in lines]
    across = scale_of(chart.x, xs, start=left, end=wide - RIGHT)
    up = scale_of(chart.y, ys, start=top + POINTS_HIGH, end=top)
    plane = (left, top, wide - RIGHT, top + POINTS_HIGH)
    parts += _axes(chart, across, up, plane)
    guides = "".join(_guide(guide, across, up) for guide in chart.guides)
    name = f"{chart.key}-plane-{wide:.0f}"  # a page may hold the chart in two widths
    parts.append(
        f'<clipPath id="{name}"><rect x="{left}" y="{top}"'
        f' width="{wide - left - RIGHT}" height="{POINTS_HIGH}"/></clipPath>'
    )
    parts.append(f'<g clip-path="url(#{name})">{guides}</g>')
    for group in chart.groups:
        parts += _group(chart, group, across, up)
    parts += _names(chart, across, up, plane, wide)
    high = top + POINTS_HIGH + 46
    return document(high, parts, label=f"{chart.title}. {chart.sentence}", wide=wide)


def _axes(
    chart: Points, across: Scale, up: Scale, plane: tuple[float, float, float, float]
) -> list[str]:
    left, top, right, bottom = plane
    parts = []
    for tick in up.ticks:
        parts.append(f'<path class="rule" d="M{left} {up(tick):.1f}H{right}"/>')
        parts.append(soft(left - 6, up(tick) + 4, tick_words(tick), anchor="end"))
    last = -1e9
    for tick in across.ticks:
        x, words = across(tick), tick_words(tick)
        parts.append(f'<path class="rule" d="M{x:.1f} {top}V{bottom + 4:.1f}"/>')
        if x - text_width(words) / 2 > last:
            last = x + text_width(words) / 2 + 6
            parts.append(soft(x, bottom + 18, words, anchor="middle"))
    parts.append(f'<path class="axis" d="M{left} {top}V{bottom}H{right}"/>')
    parts.append(text(right, bottom + 38, chart.x.title, kind="ink", anchor="end"))
    parts.append(text(0, top - 12, chart.y.title, kind="ink"))
    return parts


def _names(
    chart: Points,
    across: Scale,
    up: Scale,
    plane: tuple[float, float, float, float],
    wide: float,
) -> list[str]:
    """The names of points that have one, where they can be read."""
    marked = [point for group in chart.groups if group.mark != "none" for point in group.points]
    around = (0.0, plane[1] - 6, wide, plane[3])
    marks = [(across(point.x), up(point.y)) for point in marked]
    parts = []
    labels = []
    for joined in (False, True):
        named = [
            (across(point.x), up(point.y), point.label)
            for group in chart.groups
            for point in group.points
            if point.named and (group.joined == "line") == joined
        ]
        labels += placed_labels(named, marks, around, first="below" if joined else "beside")
    for label in labels:
        if label.leader is not None:
            x, y, to_x, to_y = label.leader
            parts.append(f'<path class="rule" d="M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"/>')
        parts.append(text(label.x, label.y, label.words, kind="strong halo", anchor=label.anchor))
    return parts


def _guide(guide: Guide, across: Scale, up: Scale) -> str:
    path = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in guide.points)
    return f'<path class="limit" d="M{path}"/>'


def _group(chart: Points, group: Group, across: Scale, up: Scale) -> list[str]:
    placed = [(point, across(point.x), up(point.y)) for point in group.points]
    parts = []
    if group.joined != "no" and len(placed) > 1:
        first, *others = placed
        joint = "".join(
            f"H{x:.1f}V{y:.1f}" if group.joined == "steps" else f"L{x:.1f} {y:.1f}"
            for _, x, y in others
        )
        parts.append(
            f'<path d="M{first[1]:.1f} {first[2]:.1f}{joint}" fill="none" stroke="{group.colour}"'
            ' stroke-width="2"/>'
        )
    for point, x, y in placed:
        if point.low is not None and point.high is not None:
            low, high = up(point.low), up(point.high)
            ends = f"M{x - 3:.1f} {low:.1f}h6M{x:.1f} {low:.1f}V{high:.1f}M{x - 3:.1f} {high:.1f}h6"
            parts.append(
                f'<path d="{ends}" fill="none" stroke="{group.colour}" stroke-width="1.2"/>'
            )
        parts.append(tipped(_mark(group, x, y), _tip(chart, point)) if group.mark != "none" else "")
    return parts


def _tip(chart: Points, point: Point) -> str:
    lines = [
        point.label,
        f"{chart.x.title}: {number(point.x, digits=4)}",
        f"{chart.y.title}: {number(point.y, digits=4)}",
    ]
    if point.low is not None and point.high is not None:
        lines.append(f"80 %: {number(point.low)} to {number(point.high)}")
    return "\n".join([*lines, *([point.detail] if point.detail else [])])


def _mark(group: Group, x: float, y: float) -> str:
    filled = f'fill="{group.colour}" class="gap"'
    drawn = f'fill="none" stroke="{group.colour}" stroke-width="2"'
    size = SIZE - 1
    marks = {
        "disc": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{SIZE:.0f}" {filled}/>',
        "ring": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.0f}" {drawn}/>',
        "square": (
            f'<rect x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size:.0f}"'
            f' height="{2 * size:.0f}" {filled}/>'
        ),
        "diamond": f'<path d="M{x:.1f} {y - 7:.1f}l7 7-7 7-7-7z" {filled}/>',
        "cross": f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8" {drawn}/>',
        "none": f'<path d="M{x - 6:.1f} {y:.1f}h12" {drawn}/>',
    }
    return marks[group.mark]
