"""What charts and tables of a report show, as values, apart from how they are drawn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Literal

from meshwright.search.groups import Exchange
from meshwright.values.ranks import StageRanks

__all__ = [
    "Axis",
    "Bar",
    "Cell",
    "Chart",
    "Column",
    "Drop",
    "Grid",
    "Group",
    "Guide",
    "Heat",
    "HeatCell",
    "Machine",
    "Op",
    "Point",
    "Points",
    "Series",
    "Stack",
    "Timeline",
    "Waterfall",
    "columns_of",
    "table_of",
]

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a table; of a CSV its heading is the key."""

    key: str
    title: str
    digits: int | None = None
    """Significant digits that people read; None is text, or a count written whole. A CSV has every
    digit."""
    wide: bool = False
    """Whether it holds sentences."""
    hidden: bool = False
    """Whether it is for filters and a CSV alone, as another column says it to people."""

    @property
    def is_number(self) -> bool:
        """Whether its cells are aligned and sorted as numbers."""
        return self.digits is not None


def columns_of(*specs: tuple[Any, ...]) -> tuple[Column, ...]:
    """Return columns from (key, title), (key, title, digits) or (key, title, "wide"); "hidden" is
    text that is not shown, "hidden 3" a number."""

    def column(key: str, title: str, form: int | str | None = None) -> Column:
        hidden, _, number = (form if isinstance(form, str) else "").partition(" ")
        digits = int(number) if number else form if isinstance(form, int) else None
        return Column(
            key=key, title=title, digits=digits, wide=form == "wide", hidden=hidden == "hidden"
        )

    return tuple(column(*spec) for spec in specs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A table."""

    key: str
    """Names its CSV and its place in the page."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    sentence: str = ""
    """What a reader should take from it."""
    marked: int | None = None
    """Row that is the answer."""


def table_of(
    items: Iterable[Any],
    *columns: tuple[Any, ...],
    key: str,
    title: str,
    sentence: str = "",
    marked: int | None = None,
) -> Grid:
    """Return a table with a row per item. A column is (key, title, form, cell): the first three as
    `columns_of` has them, the last a key of the item or a function of it."""
    cells = [cell if callable(cell) else itemgetter(cell) for *_, cell in columns]
    return Grid(
        key=key,
        title=title,
        columns=columns_of(*(column[:3] for column in columns)),
        rows=tuple(tuple(cell(item) for cell in cells) for item in items),
        sentence=sentence,
        marked=marked,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One part of a stack, the same in every bar."""

    key: str
    title: str
    colour: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar of a stack."""

    label: str
    values: tuple[float, ...]
    """One per series; they sum to the bar."""
    low: float | None = None
    """Ends of the interval of the sum."""
    high: float | None = None
    words: str = ""
    """What stands at its end in place of its sum."""

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(self.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Horizontal bars, each cut into the same parts."""

    key: str
    title: str
    sentence: str
    unit: str
    series: tuple[Series, ...]
    bars: tuple[Bar, ...]
    over: str = "bar"
    """What a bar is: heading of the first column of its table."""
    limit: float | None = None
    """A line that bars should stay within."""
    limit_words: str = ""
    shared: tuple[float, ...] = ()
    """Of each part, what every bar has: it is drawn as one piece, cut short, so that what tells the
    bars apart has the room."""

    @property
    def data(self) -> Grid:
        """Its numbers as a table."""
        parts = [
            (part.key, part.title, 4, lambda bar, place=place: bar.values[place])
            for place, part in enumerate(self.series)
        ]
        low = ("low", "low, 80 %", 4, attrgetter("low"))
        high = ("high", "high, 80 %", 4, attrgetter("high"))
        return table_of(
            self.bars,
            (self.over, self.over, None, attrgetter("label")),
            *parts,
            ("total", f"total, {self.unit}", 4, attrgetter("total")),
            *((low, high) if any(bar.low is not None for bar in self.bars) else ()),
            key=self.key,
            title=self.title,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One axis."""

    key: str
    title: str
    log: bool = False
    whole: bool = False
    """Whether its values are counts, so that ticks are too."""
    from_zero: bool = False
    """Whether a linear axis starts at 0, where lengths are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point."""

    x: float
    y: float
    label: str
    low: float | None = None
    """Ends of the interval of y."""
    high: float | None = None
    detail: str = ""
    """More of it, for its tip."""
    named: bool = False
    """Whether its label is written beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Points that belong together; their mark differs from other groups, not only the colour."""

    title: str
    colour: str
    points: tuple[Point, ...]
    mark: Literal["disc", "ring", "square", "diamond", "cross", "none"] = "disc"
    joined: Literal["no", "line", "steps"] = "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class Guide:
    """A line to compare with: a limit, a roof, equality."""

    title: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Points in a plane."""

    key: str
    title: str
    sentence: str
    x: Axis
    y: Axis
    groups: tuple[Group, ...]
    guides: tuple[Guide, ...] = ()

    @property
    def data(self) -> Grid:
        """Its numbers as a table."""
        every = [(group, point) for group in self.groups for point in group.points]
        detail = [("detail", "detail", "wide", lambda pair: pair[1].detail)]
        low = ("low", "low, 80 %", 4, lambda pair: pair[1].low)
        high = ("high", "high, 80 %", 4, lambda pair: pair[1].high)
        return table_of(
            every,
            ("group", "group", None, lambda pair: pair[0].title),
            ("label", "label", None, lambda pair: pair[1].label),
            *(detail if any(point.detail for _, point in every) else ()),
            (self.x.key, self.x.title, 4, lambda pair: pair[1].x),
            (self.y.key, self.y.title, 4, lambda pair: pair[1].y),
            *((low, high) if any(point.low is not None for _, point in every) else ()),
            key=self.key,
            title=self.title,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCell:
    """One cell of a heat map."""

    value: float | None
    """None where nothing here is an answer; `reason` says why."""
    reason: str = ""
    short: str = ""
    """The reason in a few letters, written into the cell."""
    detail: str = ""
    """What the value belongs to."""
    possible: bool = True
    """Of a cell without value: whether a rule forbids it (False), or memory alone does (True)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """A map of cells by two axes; the smallest value is the best."""

    key: str
    title: str
    sentence: str
    row_axis: str
    column_axis: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cells: tuple[tuple[HeatCell, ...], ...]
    """By row, then column."""
    value_title: str

    @property
    def data(self) -> Grid:
        """Its numbers as a table."""
        cells = [
            (row, column, cell)
            for row, cells in zip(self.rows, self.cells, strict=True)
            for column, cell in zip(self.columns, cells, strict=True)
        ]
        return table_of(
            cells,
            (self.row_axis, self.row_axis, 4, 0),
            (self.column_axis, self.column_axis, 4, 1),
            ("value", self.value_title, 4, lambda at: at[2].value),
            ("detail", "layout", "wide", lambda at: at[2].detail),
            ("reason", "why not", "wide", lambda at: at[2].reason),
            key=self.key,
            title=self.title,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One operation of a pipeline stage."""

    stage: int
    kind: Literal["F", "B", "W"]
    chunk: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """One step of a pipeline: a row per stage."""

    key: str
    title: str
    sentence: str
    stages: int
    step_s: float
    """Of the pipeline alone."""
    ops: tuple[Op, ...]
    opening_s: float | None = None
    """Where the window ends that is shown at first; None is the whole step."""
    density: tuple[tuple[float, ...], ...] = ()
    """Of each stage, the share of equal pieces of the step that it works."""

    @property
    def data(self) -> Grid:
        """Its numbers as a table."""
        return table_of(
            self.ops,
            ("stage", "stage", 6, attrgetter("stage")),
            ("kind", "kind", None, attrgetter("kind")),
            ("chunk", "chunk", 6, attrgetter("chunk")),
            ("microbatch", "micro batch", 6, attrgetter("microbatch")),
            ("start_s", "start, s", 6, attrgetter("start_s")),
            ("end_s", "end, s", 6, attrgetter("end_s")),
            key=self.key,
            title=self.title,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """One step of a waterfall."""

    key: str
    title: str
    value: float
    """What it adds; below zero it takes away."""
    colour: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Waterfall:
    """How one figure becomes another: `start` and all drops sum to `end`."""

    key: str
    title: str
    sentence: str
    unit: str
    start: tuple[str, float]
    drops: tuple[Drop, ...]
    end: tuple[str, float]
    from_zero: bool = True
    """Whether start and end are bars from 0; else the axis holds the differences alone."""

    @property
    def data(self) -> Grid:
        """Its numbers as a table."""
        rows: list[tuple[Cell, ...]] = [(self.start[0], None, self.start[1])]
        so_far = self.start[1]
        for drop in self.drops:
            so_far += drop.value
            rows.append((drop.title, drop.value, so_far))
        rows.append((self.end[0], None, self.end[1]))
        columns = columns_of(
            ("step", "step"),
            ("change", f"change, {self.unit}", 4),
            ("so_far", f"so far, {self.unit}", 6),
        )
        return Grid(key=self.key, title=self.title, columns=columns, rows=tuple(rows))


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The chips of a cluster, which stage each works on, and what its groups exchange."""

    key: str
    title: str
    sentence: str
    stages: tuple[StageRanks, ...]
    box: int
    """Chips of a node, or of a larger fast domain."""
    box_word: str
    """`node`, or `domain`."""
    exchanges: tuple[Exchange, ...]
    step_s: float

    @property
    def num_chips(self) -> int:
        """Chips that work."""
        return self.stages[-1].first + self.stages[-1].count

    @property
    def data(self) -> Grid:
        """What is exchanged, as a table."""
        return table_of(
            self.exchanges,
            ("axis", "axis", None, attrgetter("axis")),
            ("exchange", "exchange", None, attrgetter("title")),
            ("link", "link", "wide", attrgetter("link")),
            ("mib", "MiB", 4, lambda one: one.sent_bytes / 2**20),
            ("per", "per", None, attrgetter("per")),
            ("step_s", "waited for, s a step", 4, attrgetter("step_s")),
            ("percent", "% of the step", 3, lambda one: 100 * one.step_s / self.step_s),
            key=self.key,
            title=self.title,
        )


Chart = Stack | Points | Heat | Timeline | Waterfall | Machine
