"""Tables that fit the terminal: what has no room is said, never cut."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

__all__ = [
    "Column",
    "blocks",
    "fold",
    "lines_of",
    "print_columns",
    "print_items",
    "say",
    "shown_columns",
    "table_width",
]

_GAPS = (2, 1)
"""Blanks between two columns; the smaller where the larger does not fit."""
_SET_IN = " " * 4
_LEAST_WORDS = 20
"""Letters of a folded line below which an indent is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a table."""

    heading: str
    justify: Literal["left", "right"] = "right"
    spare: int = 0
    """Where a terminal is too narrow, columns go from the greatest on; those of 0 stay."""
    under: bool = False
    """One that goes is written in a line under each row; else it is named as left out."""
    cell: Callable[[Any], str] = str
    """What `print_items` writes of an item."""
    usual: str | None = None
    """`print_items` leaves a column out that holds this in every row."""


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def print_items(
    console: Console, columns: Iterable[Column], items: Sequence[Any], *, more: str
) -> None:
    """Print what the columns say of each item, as `print_columns` does."""
    shown = shown_columns(columns, items)
    print_columns(console, shown, [[c.cell(item) for c in shown] for item in items], more=more)


def shown_columns(columns: Iterable[Column], items: Sequence[Any]) -> list[Column]:
    """Return the columns that hold another value than their usual one in some row."""
    return [c for c in columns if c.usual is None or {c.cell(item) for item in items} != {c.usual}]


def table_width(columns: Sequence[Column], items: Sequence[Any]) -> int:
    """Return how wide a table of these items is, with the larger gaps."""
    rows = [[column.cell(item) for column in columns] for item in items]
    return _width(range(len(columns)), columns, rows, _GAPS[0])


def print_columns(
    console: Console, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, more: str
) -> None:
    """Print rows of cells with all columns that fit, the least needed left out; `more` says where
    these are found.

    Columns that can't be spared and still do not fit are printed in blocks, each with the first
    column. A pipe or a file gets all.
    """
    limit = console.width if console.is_terminal else None
    keep = _kept(columns, rows, limit)
    gap = _GAPS[0] if limit is None or _width(keep, columns, rows, _GAPS[0]) <= limit else _GAPS[1]
    parts = [keep]
    if limit is not None:
        widths = [_cell_width(k, columns, rows) for k in range(len(columns))]
        room = limit - widths[keep[0]]
        parts = [[keep[0], *part] for part in blocks(keep[1:], widths, limit=room, gap=gap)]
    gone = [k for k in range(len(columns)) if k not in keep]
    under = [
        "; ".join(f"{columns[k].heading} {row[k]}" for k in gone if columns[k].under and row[k])
        for row in rows
    ]
    for number, part in enumerate(parts or [keep], start=1):
        if number > 1:
            console.print()
        cells = [[row[k] for k in part] for row in rows]
        lines = lines_of([columns[k] for k in part], cells, gap=gap)
        _print_block(console, lines, under if number >= len(parts) else [""] * len(rows))
    named = ", ".join(columns[k].heading for k in gone if not columns[k].under)
    if named:
        words = f"left out to fit {console.width} columns: {named}; {more}"
        console.print(words, highlight=False, markup=False)


def blocks(keys: Sequence[int], widths: Sequence[int], *, limit: int, gap: int) -> list[list[int]]:
    """Return keys in parts whose widths with their gaps fit a limit, in order; a single one that
    does not fit is a part of its own."""
    parts: list[list[int]] = []
    used = 0
    for key in keys:
        if not parts or used + gap + widths[key] > limit:
            parts.append([])
            used = 0
        parts[-1].append(key)
        used += gap + widths[key]
    return parts


def fold(line: str, *, width: int, indent: int) -> str:
    """Return a line folded at blanks, further lines set in; words longer than a line stay whole."""
    if len(line) <= width:
        return line
    room = indent if width - indent >= _LEAST_WORDS else 0
    return textwrap.fill(
        line,
        width=width,
        subsequent_indent=" " * room,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def _kept(columns: Sequence[Column], rows: Sequence[Sequence[str]], limit: int | None) -> list[int]:
    keep = list(range(len(columns)))
    while limit is not None and _width(keep, columns, rows, _GAPS[1]) > limit:
        sparest = max(keep, key=lambda k: columns[k].spare)
        if columns[sparest].spare == 0:
            break
        keep.remove(sparest)
    return keep


def _width(
    keep: Sequence[int], columns: Sequence[Column], rows: Sequence[Sequence[str]], gap: int
) -> int:
    return sum(_cell_width(k, columns, rows) for k in keep) + gap * (len(keep) - 1)


def _cell_width(k: int, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    return max(cell_len(text) for text in (columns[k].heading, *(row[k] for row in rows)))


def lines_of(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, gap: int) -> list[str]:
    """Return the heading and each row, in columns."""
    widths = [_cell_width(k, columns, rows) for k in range(len(columns))]

    def line(cells: Iterable[str]) -> str:
        return (" " * gap).join(map(_padded, cells, widths, columns)).rstrip()

    return [line(column.heading for column in columns), *map(line, rows)]


def _print_block(console: Console, lines: Sequence[str], under: Sequence[str]) -> None:
    """Print the heading and the rows, each with what has no room in it set in below."""
    console.print(Text(lines[0], style="bold"), soft_wrap=True, highlight=False)
    for line, below in zip(lines[1:], under, strict=True):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
        if below:
            folded = fold(f"{_SET_IN}{below}", width=console.width, indent=len(_SET_IN))
            console.print(folded, soft_wrap=True, highlight=False, markup=False)


def _padded(cell: str, width: int, column: Column) -> str:
    blanks = " " * (width - cell_len(cell))
    return f"{blanks}{cell}" if column.justify == "right" else f"{cell}{blanks}"
