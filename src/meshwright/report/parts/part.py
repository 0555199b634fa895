"""What a report is made of: a part for each RESULT, in sections of charts, tables and words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from meshwright.report.charts.forms import Bar, Cell, Chart, Column, Grid, Series, Stack, columns_of
from meshwright.report.charts.svg import MEMORY_COLOURS, TIME_COLOURS, cell_words, number
from meshwright.search.mixed.problem import MixedProblem
from meshwright.search.problem import Problem
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.values.errors import MeshwrightError
from meshwright.values.layout import Layout
from meshwright.values.units import GIB

__all__ = [
    "Asked",
    "Block",
    "Part",
    "Record",
    "Resolve",
    "Section",
    "Tile",
    "Words",
    "anything_part",
    "apart",
    "asked_of",
    "asked_words",
    "between_words",
    "drawn",
    "figure_tiles",
    "is_mixed",
    "layout_of",
    "layout_words",
    "memory_stack",
    "present",
    "recompute_words",
    "records_info",
    "sections_of",
    "short_words",
    "tiles_of",
    "time_stack",
    "values_info",
]

Record = Mapping[str, Any]
"""The object that a command prints with --json."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """Paragraphs, or a list where there are several."""

    lines: tuple[str, ...]


Block = Chart | Grid | Words


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One figure of an answer."""

    title: str
    value: str
    note: str = ""


def tiles_of(*specs: tuple[str, str | None, str]) -> tuple[Tile, ...]:
    """Return tiles from (title, value, note); those without a value are left out."""
    return tuple(Tile(title=t, value=value, note=n) for t, value, n in specs if value is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Blocks that answer one question."""

    key: str
    title: str
    blocks: tuple[Block, ...]


def sections_of(*specs: tuple[str, str, Sequence[Block]]) -> tuple[Section, ...]:
    """Return sections from (key, title, blocks); those without a block are left out."""
    return tuple(Section(key=key, title=t, blocks=tuple(bs)) for key, t, bs in specs if bs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One RESULT."""

    kind: str
    """The command that made it."""
    title: str
    answer: str
    """In one sentence."""
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    """What could not be shown, and why; what was computed for the page."""

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Every chart, in its order."""
        return tuple(
            block
            for section in self.sections
            for block in section.blocks
            if not isinstance(block, Grid | Words)
        )


def layout_of(content: Mapping[str, Any]) -> Layout:
    """Read a layout back from JSON."""
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items()
    }
    return Layout(**values)


def is_mixed(plan: Mapping[str, Any]) -> bool:
    """Whether a plan's stages run on chips of several kinds, or differ in more than their layers;
    the stages of `explain` are no layout."""
    return "chip" in next(iter(plan.get("stages", [])), {})


def layout_words(plan: Mapping[str, Any]) -> str:
    """Write a plan's layout as `--layout` takes it, or its stages if chips are of several kinds."""
    return _stage_words(plan["stages"]) if is_mixed(plan) else layout_of(plan["layout"]).words()


def short_words(plan: Mapping[str, Any]) -> str:
    """Name a plan in a chart: `#1 tp4 cp2 pp4x20 dp8 mbs1`, with recomputation if there is some."""
    layout, rank = plan["layout"], plan.get("rank")
    place = [] if rank is None else [f"#{rank}"]
    if is_mixed(plan):
        return " ".join([*place, _stage_words(plan["stages"])])
    axes = [
        f"{axis}{layout[axis]}"
        for axis in ("tp", "cp", "ep", "dp", "mbs")
        if layout[axis] > 1 or axis in ("tp", "dp", "mbs")
    ]
    axes.insert(1, f"pp{layout['pp']}{'x' + str(layout['vpp']) if layout['vpp'] > 1 else ''}")
    again = recompute_words(layout)
    return " ".join([*place, *axes, *([] if again == "none" else [again])])


def recompute_words(layout: Mapping[str, Any]) -> str:
    """Write what is computed again in the backward pass."""
    how = layout["recompute"]
    if how is None:
        return "differs by stage"
    if how == "selective":
        return "+".join(layout["recompute_modules"])
    layers = layout["recompute_layers"]
    return how if how != "full" or layers is None else f"full {layers}"


def _stage_words(stages: list[Mapping[str, Any]]) -> str:
    """`h800 tp4 13x5 | a800 tp4 5x3`: chip, tensor parallelism, layers of a stage times stages."""
    runs = [
        (key, [stage["layers"] for stage in run])
        for key, run in groupby(stages, key=lambda s: (s["chip"], s["tp"]))
    ]
    return " | ".join(f"{chip} tp{tp} {_layers(layers)}" for (chip, tp), layers in runs)


def _layers(layers: list[int]) -> str:
    counts = [(size, len(list(same))) for size, same in groupby(layers)]
    return "+".join(f"{size}x{count}" if count > 1 else str(size) for size, count in counts)


def asked_words(request: Record) -> str:
    """Write a request's heading: `llama3-70b on h100:256`."""
    model = request["model"]
    name = model if isinstance(model, str) else str(model.get("name", "custom model"))
    return f"{name} on {request['cluster']}"


def between_words(ends: Sequence[float]) -> str:
    """Write an interval."""
    return f"{number(ends[0])} to {number(ends[1])}"


def figure_tiles(plan: Record, *, limit_gib: float | None) -> tuple[Tile, ...]:
    """Return the figures of one priced layout."""
    sure = plan["interval"] or {}
    room = (
        ""
        if limit_gib is None
        else f"{100 * max(plan['peak_memory_gib']) / limit_gib:.0f} % of {number(limit_gib)} GiB; "
    )
    return tiles_of(
        ("Step time", f"{number(plan['step_s'])} s", _sure(sure.get("step_s"), "s")),
        ("Throughput", f"{number(plan['tokens_per_s_per_gpu'])} tokens/s", "a GPU"),
        ("MFU", f"{100 * plan['mfu']:.1f} %", f"{number(plan['tflops_per_gpu'])} TFLOPS a GPU"),
        (
            "Peak memory",
            f"{number(max(plan['peak_memory_gib']))} GiB",
            f"{room}fits: {plan['fits']}",
        ),
    )


def _sure(ends: Sequence[float] | None, unit: str) -> str:
    return "" if ends is None else f"80 %: {between_words(ends)} {unit}"


Terms = Mapping[str, float]


def time_stack(bars: Sequence[tuple[str, Record]], *, key: str, title: str, sentence: str) -> Stack:
    """Return steps by term with 80 % intervals of their sums; bars have `time` and `interval`."""
    series = _series(
        (record["time"] for _, record in bars),
        TIME_COLOURS,
        {term: r.title for term, r in TIME_READINGS.items()},
    )
    drawn = tuple(
        Bar(
            label=label,
            values=_values(series, record["time"]),
            **_ends(record["interval"], "step_s"),
        )
        for label, record in bars
    )
    return Stack(
        key=key, title=title, sentence=sentence, unit="s", series=series, bars=drawn, over="layout"
    )


def apart(stack: Stack) -> Stack:
    """Return bars of which what all have is cut short, so that the eye sees what differs; as they
    are where they do not differ."""
    shared = tuple(map(min, zip(*(bar.values for bar in stack.bars), strict=True)))
    most = max(bar.total for bar in stack.bars)
    if most - sum(shared) <= 1e-6 * most:
        return stack
    words = (
        f"All have {number(sum(shared))} {stack.unit} alike; to its right is what tells them apart."
    )
    return replace(stack, shared=shared, sentence=f"{stack.sentence} {words}".strip())


def memory_stack(
    bars: Sequence[tuple[str, Terms]],
    *,
    key: str,
    title: str,
    sentence: str,
    limit_gib: float | None,
    over: str = "stage",
) -> Stack:
    """Return GiB by term against the card's line."""
    series = _series(
        (terms for _, terms in bars),
        MEMORY_COLOURS,
        {term: r.title for term, r in MEMORY_READINGS.items()},
    )
    drawn = tuple(Bar(label=label, values=_values(series, terms)) for label, terms in bars)
    words = "" if limit_gib is None else f"{number(limit_gib)} GiB that a process may use"
    return Stack(
        key=key,
        title=title,
        sentence=sentence,
        unit="GiB",
        series=series,
        bars=drawn,
        over=over,
        limit=limit_gib,
        limit_words=words,
    )


def _series(
    every: Iterable[Terms], colours: Mapping[str, str], titles: Mapping[str, str]
) -> tuple[Series, ...]:
    """Terms that are more than rounding in some bar, in the order of the cost model."""
    listed = list(every)
    largest = {
        term: max(terms.get(term, 0.0) for terms in listed)
        for term in dict.fromkeys(t for terms in listed for t in terms)
    }
    whole = max((sum(terms.values()) for terms in listed), default=0.0)
    return tuple(
        Series(key=t, title=titles[t], colour=colours[t])
        for t, most in largest.items()
        if most > 1e-9 * whole
    )


def _values(series: Sequence[Series], terms: Terms) -> tuple[float, ...]:
    return tuple(terms.get(part.key, 0.0) for part in series)


def _ends(interval: Mapping[str, Sequence[float]] | None, name: str) -> dict[str, Any]:
    return {} if interval is None else dict(zip(("low", "high"), interval[name], strict=True))


Resolve = Callable[[Record], "Problem | MixedProblem"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a request asks, or why that can't be told here."""

    problem: Problem | None = None
    mixed: MixedProblem | None = None
    """In its place, where there are several kinds of chips, or some may be left idle."""
    why_not: str = ""

    @property
    def limit_gib(self) -> float | None:
        """What one process may use."""
        return None if self.problem is None else self.problem.setting.limit_bytes / GIB

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader misses."""
        if self.mixed is not None:
            return (
                (
                    "The map of tp and pp, operators and other numbers of chips are shown for one"
                    " kind of chip whose chips are all used."
                ),
            )
        return (
            (f"The cluster's line and computed charts are missing: {self.why_not}",)
            if self.why_not
            else ()
        )


def asked_of(request: Record, resolve: Resolve) -> Asked:
    """Look a request up."""
    try:
        found = resolve(request)
    except MeshwrightError as error:
        return Asked(why_not=str(error))
    return Asked(mixed=found) if isinstance(found, MixedProblem) else Asked(problem=found)


def drawn(block: Block | str) -> Block:
    """Return a chart, or the sentence that stands in its place."""
    return Words(lines=(block,)) if isinstance(block, str) else block


def present(block: Block | None) -> tuple[Block, ...]:
    """Return a block where there is one."""
    return () if block is None else (block,)


MOST_ROWS = 5000
"""Of a table; a page is for people."""


def anything_part(record: Record, *, name: str) -> Part:
    """Return a part of the tables that an object is made of."""
    tables = [values_info(record), *_tables(record)]
    answer = f"{name}: {len(record)} fields, as the command printed them."
    sections = tuple(
        Section(key=table.key, title=table.title, blocks=(table,)) for table in tables if table.rows
    )
    return Part(kind="values", title=name, answer=answer, tiles=(), sections=sections)


def _tables(record: Record) -> Iterator[Grid]:
    for key, value in record.items():
        if (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and value
            and isinstance(value[0], Mapping)
        ):
            yield records_info(value, key=key)
        elif (
            isinstance(value, Mapping)
            and value
            and all(isinstance(inner, Mapping) for inner in value.values())
        ):
            yield records_info([{key: name, **inner} for name, inner in value.items()], key=key)


def values_info(record: Record) -> Grid:
    """Return single values by their path, `search.seconds`; tables are left to `records_info`."""
    columns = columns_of(("field", "field"), ("value", "value", "wide"))
    return Grid(
        key="values", title="Values", columns=columns, rows=tuple(_flat(record, ""))[:MOST_ROWS]
    )


def _flat(value: Any, path: str) -> Iterator[tuple[str, Cell]]:
    if isinstance(value, Mapping):
        if (
            value
            and path
            and all(isinstance(inner, Mapping) for inner in value.values())
            and "." not in path
        ):
            return  # a table
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        if value and isinstance(value[0], Mapping):
            return  # a table
        yield (
            path,
            ", ".join(
                cell_words(inner, 6 if isinstance(inner, float) else None) for inner in value
            ),
        )
    else:
        yield path, value


def records_info(rows: Sequence[Mapping[str, Any]], *, key: str) -> Grid:
    """Return a list of objects as a table; what they nest stands under its path."""
    flat: list[dict[str, Cell]] = [dict(_flat(row, "")) for row in rows[:MOST_ROWS]]
    names = list(dict.fromkeys(name for row in flat for name in row))
    numbers = {name: all(_is_number(row.get(name)) for row in flat) for name in names}
    columns = tuple(
        Column(key=str(name), title=str(name), digits=4 if numbers[name] else None)
        for name in names
    )
    cells = tuple(tuple(row.get(name) for name in names) for row in flat)
    left = f" The first {MOST_ROWS} of {len(rows)}." if len(rows) > MOST_ROWS else ""
    return Grid(
        key=key, title=key.replace("_", " "), columns=columns, rows=cells, sentence=left.strip()
    )


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
