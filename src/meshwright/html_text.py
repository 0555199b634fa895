"""Small pieces of HTML for notebooks, which give tables their lines and colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["html_table"]


def html_table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = ""
) -> str:
    """Return a table with a caption and a note below; numbers stand right, what is missing is
    blank."""
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
