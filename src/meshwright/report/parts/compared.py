"""What a report says of `compare --json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.report.charts.forms import Axis, Grid, Group, Guide, Point, Points, table_of
from meshwright.report.charts.svg import BEST, OTHER, SEQUENCE, number
from meshwright.report.parts.part import Part, Record, Tile, between_words, present, sections_of
from meshwright.values.units import format_count

__all__ = ["compare_part", "front_info"]

_WIDE = 10.0
"""Ratio of the greatest to the least from which an axis is logarithmic."""


def compare_part(record: Record, name: str, resolve: object) -> Part:
    """Return days against dollars of every cluster, and all figures with their prices."""
    rows = record["rows"]
    keeping = [row for row in rows if not row["broken_limits"]]
    priced = [row for row in keeping if row["usd"] is not None]
    model = record["model"] or "the model"
    asked = f"{model} on {format_count(record['tokens'])} tokens"
    if priced:
        cheap, fast = priced[0], min(priced, key=lambda row: row["days"])
        said = f"{cheap['cluster']} is the cheapest, {fast['cluster']} the fastest."
        tiles = tuple(
            Tile(
                title=title,
                value=row["cluster"],
                note=f"{number(row['days'])} days, {row['usd']:,.0f} dollars {row['price_kind']}",
            )
            for title, row in (("cheapest", cheap), ("fastest", fast))
        )
    else:
        said, tiles = "no cluster with a listed price keeps the limits.", ()
    chart = front_info(record)
    return Part(
        kind="compare",
        title=f"Clusters for {asked}",
        answer=f"{asked}: {said}",
        tiles=tiles,
        sections=sections_of(
            ("front", "Days against dollars", present(chart)),
            ("clusters", "Clusters", (_clusters(rows),)),
            ("prices", "Prices", (_prices(rows),)),
        ),
    )


def front_info(record: Record) -> Points | None:
    """Return days against dollars of every cluster of known cost; None without one."""
    rows = [row for row in record["rows"] if row["usd"] is not None]
    if not rows:
        return None
    front = sorted((row for row in rows if row["on_front"]), key=lambda row: row["days"])
    others = [row for row in rows if not row["on_front"]]
    kept = [row for row in others if not row["broken_limits"]]
    days, usd = record["deadline_days"], record["budget_usd"]
    xs, ys = [row["days"] for row in rows], [row["usd"] for row in rows]
    guides = []
    if days is not None:
        guides.append(
            Guide(title=f"{number(days)} days", points=((days, min(ys)), (days, max(ys))))
        )
    if usd is not None:
        guides.append(Guide(title=f"{usd:,.0f} dollars", points=((min(xs), usd), (max(xs), usd))))
    x = Axis(key="days", title="days", log=max(xs) > _WIDE * min(xs))
    y = Axis(key="usd", title="dollars", log=max(ys) > _WIDE * min(ys))
    broken = [row for row in others if row not in kept]
    names = _names([*front, *kept, *broken], x, y)
    return Points(
        key="front",
        title="Days against dollars",
        sentence="Of the joined clusters no other is both faster and cheaper.",
        x=x,
        y=y,
        groups=(
            _group("breaks a limit", broken, "cross", OTHER, names),
            _group("another is faster and cheaper", kept, "ring", SEQUENCE[0], names),
            _group("none is faster and cheaper", front, "diamond", BEST, names),
        ),
        guides=tuple(guides),
    )


def _group(
    title: str, rows: Sequence[Mapping[str, Any]], mark: Any, colour: str, names: set[str]
) -> Group:
    points = tuple(
        Point(
            x=row["days"],
            y=row["usd"],
            label=row["cluster"],
            detail=f"{row['price_kind']}; {row['layout']}",
            named=row["cluster"] in names,
        )
        for row in rows
    )
    joined: Any = "steps" if mark == "diamond" else "no"
    return Group(title=title, colour=colour, mark=mark, joined=joined, points=points)


def _names(rows: Sequence[Mapping[str, Any]], x: Axis, y: Axis) -> set[str]:
    """Clusters whose names have room: the first ones first, none within a name of another."""
    xs, ys = (
        _shares([row[key] for row in rows], log=axis.log) for key, axis in (("days", x), ("usd", y))
    )
    kept: list[int] = []
    for place in range(len(rows)):
        if all(
            abs(xs[place] - xs[k]) > _NAME_WIDE or abs(ys[place] - ys[k]) > _NAME_HIGH for k in kept
        ):
            kept.append(place)
    return {rows[place]["cluster"] for place in kept}


_NAME_WIDE, _NAME_HIGH = 0.2, 0.05
"""Shares of the plane that a name takes."""


def _shares(values: Sequence[float], *, log: bool) -> list[float]:
    """Where values lie between the least, 0, and the greatest, 1."""
    found = [math.log(value) if log else value for value in values]
    low, width = min(found), max(found) - min(found)
    return [(value - low) / width if width else 0.0 for value in found]


def _clusters(rows: Sequence[Mapping[str, Any]]) -> Grid:
    return table_of(
        rows,
        ("cluster", "cluster", None, "cluster"),
        ("days", "days", 4, "days"),
        ("likely", "likely", None, lambda row: _between(row["interval"])),
        ("usd", "dollars", 6, "usd"),
        ("price_kind", "price", None, "price_kind"),
        ("kwh", "kWh", 4, "kwh"),
        ("kg_co2", "kg CO2", 4, "kg_co2"),
        ("broken", "limits", None, lambda row: ", ".join(row["broken_limits"])),
        ("layout", "layout", "wide", "layout"),
        key="clusters",
        title="Clusters",
        sentence="The cheapest first; a blank is not listed anywhere.",
        marked=0 if rows and not rows[0]["broken_limits"] else None,
    )


def _between(interval: Mapping[str, Sequence[float]] | None) -> str | None:
    return None if interval is None else between_words(interval["days"])


def _prices(rows: Sequence[Mapping[str, Any]]) -> Grid:
    pairs = [(row["cluster"], price) for row in rows for price in row["prices"]]
    return table_of(
        pairs,
        ("cluster", "cluster", None, lambda pair: pair[0]),
        *(
            (key, title, digits, lambda pair, key=key: pair[1][key])
            for key, title, digits in (
                ("kind", "price", None),
                ("usd_per_hour", "dollars an hour of a chip", 4),
                ("usd", "dollars", 6),
                ("provider", "provider", None),
                ("date", "date", None),
                ("source", "source", "wide"),
            )
        ),
        key="prices",
        title="Prices",
    )
