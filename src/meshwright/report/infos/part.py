"""What a report is made of: a part for each RESULT, in sections of charts, tables and words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from meshwright.report.charts.forms import Bar, Chart, Grid, Series, Stack
from meshwright.report.charts.svg import MEMORY_COLOURS, TIME_COLOURS, number
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.values.layout import Layout

__all__ = [
    "Block",
    "Part",
    "Record",
    "Section",
    "Tile",
    "Words",
    "is_mixed",
    "layout_of",
    "layout_words",
    "memory_stack",
    "recompute_words",
    "short_words",
    "time_stack",
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Blocks that answer one question."""

    key: str
    title: str
    blocks: tuple[Block, ...]


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
    """Write a plan's layout as `--layout` takes it, or the stages of one over several kinds of
    chips."""
    return _stage_words(plan["stages"]) if is_mixed(plan) else layout_of(plan["layout"]).words()


def short_words(plan: Mapping[str, Any]) -> str:
    """Name a plan in a chart: `#1 tp4 cp2 pp4x20 dp8 mbs1`, recomputation only where there is
    some."""
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


Terms = Mapping[str, float]


def time_stack(bars: Sequence[tuple[str, Record]], *, key: str, title: str, sentence: str) -> Stack:
    """Return steps by term, each with the 80 % interval of its sum; (name, what has `time` and
    `interval`) each."""
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


def _ends(interval: Mapping[str, Sequence[float]] | None, name: str) -> dict[str, float]:
    return {} if interval is None else dict(zip(("low", "high"), interval[name], strict=True))
