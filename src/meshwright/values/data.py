"""The package's own tables."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

__all__ = ["package_rows"]


@cache
def package_rows(path: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a CSV that the package brings along, by its headings:
    `package_rows("values/stacks.csv")`; nobody may change them."""
    text = files("meshwright").joinpath(*path.split("/")).read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))
