"""What a row says of its software beyond the software's name: graphs, compilation, overlaps."""

from __future__ import annotations

import re

from meshwright.accuracy.cells import Cells
from meshwright.accuracy.tables import read_rules

__all__ = ["StackChanges", "stack_changes_of_row"]

StackChanges = tuple[tuple[str, float | str], ...]
"""Fields of Stack and their values, later ones first read."""


def stack_changes_of_row(cells: Cells) -> StackChanges:
    """Return what differs from the software's defaults; of rules for one field the first that
    matches holds."""
    detail = re.split(r"\[tag|\[joined", cells.words("recompute_detail"))[0]
    known = {"in": "precision", "on": "gpu", "release": "release", "as of": "as_of"}
    said = [f"{word} {cells.words(column)}" for word, column in known.items()]
    text = " | ".join(
        [cells.words("framework"), cells.words("model"), cells.words("notes"), detail, *said]
    )
    changes: dict[str, float | str] = {}
    for rule in read_rules("stack_words").rules:
        if found := rule.pattern.search(text):
            for word in found.expand(rule["changes"]).split():
                field, _, value = word.partition("=")
                changes.setdefault(
                    field, float(value) if re.fullmatch(r"[\d.e+-]+", value) else value
                )
    return tuple(sorted(changes.items()))
