"""Any chart as SVG, for a page or alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape

from meshwright.report.charts.forms import (
    Bar,
    Chart,
    Grid,
    Group,
    Guide,
    Heat,
    HeatCell,
    Op,
    Point,
    Points,
    Stack,
    Timeline,
)
from meshwright.report.charts.svg import (
    LETTER,
    WIDTH,
    Scale,
    cell_words,
    chart_css,
    document,
    legend,
    number,
    on_colour,
    ramp,
    scale_of,
    text,
    text_width,
    tick_words,
    tipped,
)

__all__ = [
    "KINDS",
    "UNITS",
    "alone",
    "chart_markdown",
    "draw",
    "draw_heat",
    "draw_points",
    "draw_stack",
    "draw_timeline",
    "grid_markdown",
]

soft = partial(text, kind="soft")
HIGH = 40.0
"""Of a cell."""
WIDEST = 110.0
LEFT = 76.0
NEVER = "\u2013"
"""Written into cells that a rule forbids."""


def draw_heat(chart: Heat) -> str:
    """Draw cells from light (best) to dark; those without an answer are hatched, and say why."""
    wide = min(WIDEST, (WIDTH - LEFT) / len(chart.columns))
    values = [cell.value for cells in chart.cells for cell in cells if cell.value is not None]
    best, worst = (min(values), max(values)) if values else (0.0, 0.0)
    parts = [_hatch(chart.key), *_key(chart, best, worst)]
    top = 56.0
    for place, column in enumerate(chart.columns):
        parts.append(
            soft(
                LEFT + (place + 0.5) * wide,
                top - 8,
                f"{chart.column_axis} {column}",
                anchor="middle",
            )
        )
    for line, (row, cells) in enumerate(zip(chart.rows, chart.cells, strict=True)):
        y = top + line * HIGH
        parts.append(soft(LEFT - 10, y + HIGH / 2 + 4, f"{chart.row_axis} {row}", anchor="end"))
        for place, (column, cell) in enumerate(zip(chart.columns, cells, strict=True)):
            title = f"{chart.row_axis} {row}, {chart.column_axis} {column}"
            parts += _cell(chart, cell, title, LEFT + place * wide, y, wide, best, worst)
    return document(
        top + len(chart.rows) * HIGH + 8, parts, label=f"{chart.title}. {chart.sentence}"
    )


def _hatch(key: str) -> str:
    line = '<path class="hatch" d="M-2 2l4-4M0 8l8-8M6 10l4-4"/>'
    pattern = (
        f'<pattern id="{key}-hatch" width="8" height="8"'
        f' patternUnits="userSpaceOnUse">{line}</pattern>'
    )
    return f"<defs>{pattern}</defs>"


def _key(chart: Heat, best: float, worst: float) -> list[str]:
    """What the colours and the hatching mean."""
    steps = 24
    parts = [soft(0, 12, f"{chart.value_title}: {number(best)}")]
    x = text_width(f"{chart.value_title}: {number(best)}") + 8
    for step in range(steps):
        parts.append(
            f'<rect x="{x + 6 * step:.1f}" y="2" width="6.5" height="12"'
            f' fill="{ramp(step / (steps - 1))}"/>'
        )
    x += 6 * steps + 8
    parts.append(soft(x, 12, number(worst)))
    x += text_width(number(worst)) + 28
    parts.append(
        f'<rect x="{x:.1f}" y="2" width="24" height="12" class="rule"'
        f' fill="url(#{chart.key}-hatch)" style="fill:url(#{chart.key}-hatch)"/>'
    )
    parts.append(soft(x + 32, 12, "does not fit: GiB too much, at the least"))
    x += 32 + text_width("does not fit: GiB too much, at the least") + 20
    parts.append(soft(x, 12, NEVER))
    parts.append(soft(x + 12, 12, "breaks a rule"))
    return parts


def _cell(
    chart: Heat,
    cell: HeatCell,
    title: str,
    x: float,
    y: float,
    wide: float,
    best: float,
    worst: float,
) -> list[str]:
    place = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{wide - 2:.1f}" height="{HIGH - 2:.1f}"'
    middle = (x + wide / 2, y + HIGH / 2 + 4)
    if cell.value is None:
        fill = f' style="fill:url(#{chart.key}-hatch)"' if cell.possible else ' style="fill:none"'
        parts = [tipped(f'<rect {place} class="rule"{fill}/>', f"{title}\n{cell.reason}")]
        if not cell.possible:
            return [*parts, soft(*middle, NEVER, anchor="middle")]
        if cell.short:
            half = text_width(cell.short) / 2 + 3
            parts.append(
                f'<rect x="{middle[0] - half:.1f}" y="{middle[1] - 13:.1f}" width="{2 * half:.1f}"'
                ' height="18" class="void"/>'
            )
            parts.append(soft(*middle, cell.short, anchor="middle"))
        return parts
    colour = ramp((cell.value - best) / (worst - best) if worst > best else 0.0)
    words = number(cell.value)
    lines = (title, f"{chart.value_title}: {number(cell.value, digits=4)}", cell.detail)
    tip = "\n".join(filter(None, lines))
    parts = [tipped(f'<rect {place} rx="3" fill="{colour}"/>', tip)]
    parts.append(text(*middle, words, kind=on_colour(colour), anchor="middle"))
    if cell.value == best:
        parts.append(f'<rect {place} rx="3" class="frame"/>')
    return parts


POINTS_HIGH = 340.0
"""Of the plane."""
POINTS_LEFT, RIGHT = 76.0, 24.0
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
    ends = [value for point in every for value in (point.y, point.low, point.high)]
    ys = [value for value in ends if value is not None] + [y for _, y in lines]
    across = scale_of(chart.x, xs, start=POINTS_LEFT, end=WIDTH - RIGHT)
    up = scale_of(chart.y, ys, start=top + POINTS_HIGH, end=top)
    parts += _axes(chart, across, up, top)
    guides = "".join(_guide(guide, across, up) for guide in chart.guides)
    parts.append(
        f'<clipPath id="{chart.key}-plane"><rect x="{POINTS_LEFT}" y="{top}"'
        f' width="{WIDTH - POINTS_LEFT - RIGHT}" height="{POINTS_HIGH}"/></clipPath>'
    )
    parts.append(f'<g clip-path="url(#{chart.key}-plane)">{guides}</g>')
    for group in chart.groups:
        parts += _group(chart, group, across, up)
    return document(top + POINTS_HIGH + 46, parts, label=f"{chart.title}. {chart.sentence}")


def _axes(chart: Points, across: Scale, up: Scale, top: float) -> list[str]:
    bottom, right = top + POINTS_HIGH, WIDTH - RIGHT
    parts = []
    for tick in up.ticks:
        parts.append(f'<path class="rule" d="M{POINTS_LEFT} {up(tick):.1f}H{right}"/>')
        parts.append(soft(POINTS_LEFT - 8, up(tick) + 4, tick_words(tick), anchor="end"))
    for tick in across.ticks:
        parts.append(f'<path class="rule" d="M{across(tick):.1f} {top}V{bottom + 4:.1f}"/>')
        parts.append(soft(across(tick), bottom + 18, tick_words(tick), anchor="middle"))
    parts.append(f'<path class="axis" d="M{POINTS_LEFT} {top}V{bottom}H{right}"/>')
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
    place, anchor = (x + SIZE + 5, "start") if beside else (x - SIZE - 5, "end")
    return text(place, y - 6, point.label, kind="strong", anchor=anchor)


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


STACK_HIGH, GAP = 26.0, 10.0
"""Of a bar, and between two."""
MOST_LABEL = 300.0
"""Width that the names of bars may take."""
LEAST_MARK = 0.4
"""Parts that are thinner are not drawn."""


def draw_stack(stack: Stack) -> str:
    """Draw one bar below the other, parts from left to right, the limit as a line across all."""
    parts, top = legend(
        [
            (f'<rect width="12" height="12" rx="2" fill="{s.colour}"/>', s.title)
            for s in stack.series
        ],
        0.0,
    )
    top += 24 if stack.limit is not None else 8
    left = min(MOST_LABEL, max(text_width(bar.label) for bar in stack.bars) + 12)
    ends = [max(bar.total, bar.high or 0.0) for bar in stack.bars]
    most = max(*ends, stack.limit or 0.0) or 1.0
    along = Scale(0.0, most * 1.02, start=left, end=WIDTH - 86)
    bottom = top + len(stack.bars) * (STACK_HIGH + GAP)
    parts += _axis(along, top, bottom, stack.unit)
    for place, bar in enumerate(stack.bars):
        parts += _bar(stack, bar, along, top + place * (STACK_HIGH + GAP), left)
    if stack.limit is not None:
        x = along(stack.limit)
        parts.append(f'<path class="limit" d="M{x:.1f} {top - 6:.1f}V{bottom:.1f}"/>')
        parts.append(
            text(min(x + 4, WIDTH), top - 11, stack.limit_words, kind="strong", anchor="end")
        )
    return document(bottom + 38, parts, label=f"{stack.title}. {stack.sentence}")


def _axis(along: Scale, top: float, bottom: float, unit: str) -> list[str]:
    parts = []
    for tick in along.ticks:
        parts.append(f'<path class="rule" d="M{along(tick):.1f} {top - 4:.1f}V{bottom:.1f}"/>')
        parts.append(soft(along(tick), bottom + 16, tick_words(tick), anchor="middle"))
    return [*parts, soft(WIDTH, bottom + 16, unit, anchor="end")]


def _bar(stack: Stack, bar: Bar, along: Scale, y: float, left: float) -> list[str]:
    most = round((left - 12) / LETTER)
    label = bar.label if len(bar.label) <= most else f"{bar.label[: most - 1]}…"
    parts = [text(0, y + 17, label, kind="ink")]
    done = 0.0
    for series, value in zip(stack.series, bar.values, strict=True):
        start, end = along(done), along(done + value)
        done += value
        if end - start < LEAST_MARK:
            continue
        rect = (
            f'<rect x="{start:.1f}" y="{y:.1f}" width="{end - start:.1f}" height="{STACK_HIGH:.0f}"'
            f' fill="{series.colour}" class="gap"/>'
        )
        share = f", {value / bar.total:.1%}" if bar.total else ""
        tip = f"{bar.label}\n{series.title}: {number(value, digits=4)} {stack.unit}{share}"
        parts.append(tipped(rect, tip))
        words = number(value)
        if end - start > text_width(words) + 8:
            kind = on_colour(series.colour)
            parts.append(text((start + end) / 2, y + 17, words, kind=kind, anchor="middle"))
    shown = along(done)
    if bar.low is not None and bar.high is not None:
        parts.append(_whisker(along(bar.low), along(bar.high), y + STACK_HIGH + 3))
    parts.append(text(shown + 8, y + 17, f"{number(bar.total)} {stack.unit}", kind="strong"))
    return parts


def _whisker(low: float, high: float, y: float) -> str:
    return (
        f'<path class="whisker" d="M{low:.1f} {y - 3:.1f}v6M{low:.1f} {y:.1f}H{high:.1f}M{high:.1f}'
        f' {y - 3:.1f}v6"/>'
    )


TIMELINE_HIGH, TIMELINE_GAP = 28.0, 8.0
"""Of a stage's row, and between two."""
TIMELINE_LEFT = 66.0
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
    tall = chart.stages * (TIMELINE_HIGH + TIMELINE_GAP)
    along = Scale(0.0, chart.step_s, start=TIMELINE_LEFT, end=WIDTH)
    for stage in range(chart.stages):
        y = top + stage * (TIMELINE_HIGH + TIMELINE_GAP)
        parts.append(soft(0, y + 18, f"stage {stage}"))
        parts.append(
            f'<rect x="{TIMELINE_LEFT}" y="{y:.1f}"'
            f' width="{WIDTH - TIMELINE_LEFT:.1f}" height="{TIMELINE_HIGH:.0f}"'
            ' class="rule"/>'
        )
    plot = "".join(_paths(chart, stage, kind) for stage in range(chart.stages) for kind in kinds)
    parts.append(
        f'<svg class="plot" x="{TIMELINE_LEFT:.0f}" y="{top:.1f}"'
        f' width="{WIDTH - TIMELINE_LEFT:.0f}"'
        f' height="{tall:.1f}" viewBox="0 0 {UNITS} {tall:.1f}"'
        f' preserveAspectRatio="none">{plot}</svg>'
    )
    places = (
        f'data-y="{top + tall:.1f}" data-left="{TIMELINE_LEFT:.0f}" data-right="{WIDTH:.0f}"'
        f' data-step="{chart.step_s!r}"'
    )
    parts.append(f'<g class="ticks" {places}>{_timeline_axis(along, top + tall)}</g>')
    parts.append(soft(WIDTH, top + tall + 18, "s", anchor="end"))
    return document(
        top + tall + 28, parts, label=f"{chart.title}. {chart.sentence} {number(chart.step_s)} s."
    )


def _timeline_axis(along: Scale, y: float) -> str:
    marks = [(along(tick), tick_words(tick)) for tick in along.ticks if along(tick) < WIDTH - 24]
    return "".join(
        f'<path class="axis" d="M{x:.1f} {y:.1f}v5"/>{soft(x, y + 18, words, anchor="middle")}'
        for x, words in marks
    )


def _paths(chart: Timeline, stage: int, kind: str) -> str:
    """All operations of a kind on a stage; `data-ops` has `chunk.microbatch` of each, for tips."""
    ops = [op for op in chart.ops if op.stage == stage and op.kind == kind]
    if not ops:
        return ""
    y = stage * (TIMELINE_HIGH + TIMELINE_GAP)
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
        found.append(f"M{start},{y:g}h{wide}v{TIMELINE_HIGH:g}h-{wide}z")
    return "".join(found)


MARGIN = 20.0


def draw(chart: Chart) -> str:
    """Return a chart as an SVG element whose colours a page gives."""
    if isinstance(chart, Stack):
        return draw_stack(chart)
    if isinstance(chart, Points):
        return draw_points(chart)
    return draw_heat(chart) if isinstance(chart, Heat) else draw_timeline(chart)


def alone(chart: Chart) -> str:
    """Return a chart with its title as an SVG file on light ground."""
    inner = draw(chart)
    high = float(inner.split('viewBox="', 1)[1].split('"', 1)[0].split()[3])
    wide, tall = WIDTH + 2 * MARGIN, high + 2 * MARGIN + 34
    placed = inner.replace(
        "<svg ",
        f'<svg x="{MARGIN:.0f}" y="{MARGIN + 34:.0f}" width="{WIDTH:.0f}" height="{high:.0f}" ',
        1,
    )
    heading = (
        f'<text x="{MARGIN:.0f}" y="{MARGIN + 12:.0f}" class="strong"'
        f' style="font-size:16px">{escape(chart.title)}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {tall:.0f}"'
        f' width="{wide:.0f}" height="{tall:.0f}">'
        f"<style>{chart_css('light')}</style>"
        f'<rect width="{wide:.0f}" height="{tall:.0f}" class="ground"/>{heading}{placed}</svg>\n'
    )


def chart_markdown(chart: Chart) -> str:
    """Return a chart's title, its sentence and its numbers."""
    return f"## {chart.title}\n\n{chart.sentence}\n\n{grid_markdown(chart.data)}"


def grid_markdown(grid: Grid) -> str:
    """Return a table; numbers stand right."""
    heading = [column.title for column in grid.columns]
    rule = ["---:" if column.is_number else "---" for column in grid.columns]
    rows = [
        [cell_words(cell, column.digits) for cell, column in zip(row, grid.columns, strict=True)]
        for row in grid.rows
    ]
    lines = (" | ".join(map(_markdown_cell, row)) for row in (heading, rule, *rows))
    return "".join(f"| {line} |\n" for line in lines)


def _markdown_cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")
