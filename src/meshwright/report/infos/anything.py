"""What a report says of an answer that it has no chart for: its values as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshwright.report.charts.forms import Cell, Column, Grid
from meshwright.report.charts.svg import cell_words
from meshwright.report.infos.part import Part, Record, Section

__all__ = ["anything_part", "records_info", "values_info"]

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
    columns = (Column(key="field", title="field"), Column(key="value", title="value", wide=True))
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
