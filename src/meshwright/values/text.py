"""YAML as values: read and written."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

from meshwright.values.errors import ConfigError

if TYPE_CHECKING:
    import yaml

__all__ = ["csv_text", "html_table", "read_yaml", "write_yaml"]


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table with its headings, a line per row; None is blank."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def html_table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = ""
) -> str:
    """Return a table with caption and note; numbers stand right, what is missing is blank."""
    listed = [list(row) for row in rows]
    sides = [
        "right" if _numeric([row[k] for row in listed]) else "left" for k in range(len(headings))
    ]
    head = "".join(
        f'<th scope="col" style="text-align:{side}">{escape(name)}</th>'
        for name, side in zip(headings, sides, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(_cell(value, side) for value, side in zip(row, sides, strict=True))}</tr>"
        for row in listed
    )
    below = f'<div style="opacity:.75">{escape(note)}</div>' if note else ""
    return (
        '<div style="max-width:100%;overflow-x:auto"><table>'
        "<caption"
        f' style="text-align:left;font-weight:600;caption-side:top">{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}</div>"
    )


def _numeric(values: Sequence[object]) -> bool:
    return any(isinstance(v, int | float) for v in values) and all(
        v is None or isinstance(v, int | float) for v in values
    )


def _cell(value: object, side: str) -> str:
    words = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'<td style="text-align:{side}">{escape(words)}</td>'


_ODD = re.compile(r"[^\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]|[\u2028\u2029\ufeff]")
"""Signs that YAML reads as ends of lines, or not at all, unless they are escaped."""


def read_yaml(text: str, *, what: str) -> dict[str, Any]:
    """Return the mapping that a text holds; ConfigError where it holds something else."""
    import yaml

    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{what}: no YAML: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{what}: expected keys and values, got {type(values).__name__}")
    return values


def write_yaml(values: dict[str, Any]) -> str:
    """Return a mapping as text, in its order: several lines are a block; it reads back as it
    was."""
    import yaml

    return yaml.dump(values, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=140)


@cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts so that YAML's ideas of lines do not change them, and equal parts twice."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        block = value.endswith("\n") and value.count("\n") > 1 and not _ODD.search(value)
        style = "|" if block else '"' if "\n" in value or _ODD.search(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper
