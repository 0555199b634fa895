"""Points in a plane as SVG."""

from __future__ import annotations

from meshwright.report.charts.forms import Group, Guide, Point, Points
from meshwright.report.charts.svg import (
    WIDTH,
    Scale,
    document,
    legend,
    scale_of,
    text,
    text_width,
    tick_words,
    tipped,
)
from meshwright.report.charts.words import number

__all__ = ["draw_points"]

HIGH = 340.0
"""Of the plane."""
LEFT, RIGHT = 76.0, 24.0
SIZE = 5.0
"""Of a mark, from its middle."""


def draw_points(chart: Points) -> str:
    """Draw axes, guides, then groups in their order, so that the last lies on top."""
    entries = [
        (f'<g transform="translate(6 6)">{_mark(group, 0, 0)}</g>', group.title)
        for group in chart.groups
        if group.points
    ]
    dash = '<path class="limit" d="M0 6h14"/>'
    parts, top = legend([*entries, *((dash, guide.title) for guide in chart.guides)], 0.0)
    top += 28
    every = [point for group in chart.groups for point in group.points]
    lines = [corner for guide in chart.guides for corner in guide.points]
    xs = [point.x for point in every] + [x for x, _ in lines]
    ys = [
        value for point in every for value in (point.y, point.low, point.high) if value is not None
    ] + [y for _, y in lines]
    across = scale_of(chart.x, xs, start=LEFT, end=WIDTH - RIGHT)
    up = scale_of(chart.y, ys, start=top + HIGH, end=top)
    parts += _axes(chart, across, up, top)
    parts.append(
        f'<clipPath id="{chart.key}-plane"><rect x="{LEFT}" y="{top}"'
        f' width="{WIDTH - LEFT - RIGHT}" height="{HIGH}"/></clipPath>'
    )
    parts.append(
        f'<g clip-path="url(#{chart.key}-plane)">{"".join(_guide(guide, across, up) for guide in chart.guides)}</g>'  # noqa: E501
    )
    for group in chart.groups:
        parts += _group(chart, group, across, up)
    return document(top + HIGH + 46, parts, label=f"{chart.title}. {chart.sentence}")


def _axes(chart: Points, across: Scale, up: Scale, top: float) -> list[str]:
    bottom, right = top + HIGH, WIDTH - RIGHT
    parts = []
    for tick in up.ticks:
        parts.append(f'<path class="rule" d="M{LEFT} {up(tick):.1f}H{right}"/>')
        parts.append(text(LEFT - 8, up(tick) + 4, tick_words(tick), kind="soft", anchor="end"))
    for tick in across.ticks:
        parts.append(f'<path class="rule" d="M{across(tick):.1f} {top}V{bottom + 4:.1f}"/>')
        parts.append(
            text(across(tick), bottom + 18, tick_words(tick), kind="soft", anchor="middle")
        )
    parts.append(f'<path class="axis" d="M{LEFT} {top}V{bottom}H{right}"/>')
    parts.append(text(right, bottom + 38, chart.x.title, kind="ink", anchor="end"))
    parts.append(text(0, top - 12, chart.y.title, kind="ink"))
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
        if point.named:
            parts.append(_name_below(point, x, y) if group.joined == "line" else _name(point, x, y))
    return parts


def _name(point: Point, x: float, y: float) -> str:
    """Write the label at the side with room."""
    beside = x + SIZE + 5 + text_width(point.label) < WIDTH
    return text(
        x + SIZE + 5 if beside else x - SIZE - 5,
        y - 6,
        point.label,
        kind="strong",
        anchor="start" if beside else "end",
    )


def _name_below(point: Point, x: float, y: float) -> str:
    """Write the label where the line does not run through it."""
    return text(x, y + 22, point.label, kind="strong", anchor="middle")


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
