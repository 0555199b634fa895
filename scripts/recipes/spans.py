"""Configurations that several releases have, as one row with the first and the last of them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["spans"]


def spans(rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Join rows, oldest release first, that differ in their release alone; `until` is the last. A
    configuration that a release lacks ends, and one that is told anew starts again."""
    found: list[dict[str, str]] = []
    open_rows: dict[tuple[str, ...], dict[str, str]] = {}
    release, seen = "", set[tuple[str, ...]]()
    for row in rows:
        if row["release"] != release:
            open_rows = {key: one for key, one in open_rows.items() if key in seen}
            release, seen = row["release"], set()
        key = tuple(value for name, value in row.items() if name != "release")
        if key in seen:
            continue
        seen.add(key)
        if key in open_rows:
            open_rows[key]["until"] = release
            continue
        head = {"stack": row["stack"], "release": release, "until": release}
        open_rows[key] = {**head, **{name: row[name] for name in row if name not in head}}
        found.append(open_rows[key])
    return found
