"""The package's own tables."""

from __future__ import annotations

import csv
import pkgutil
from functools import cache

__all__ = ["package_rows"]


@cache
def package_rows(path: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a CSV that the package brings along, by its headings:
    `package_rows("values/stacks.csv")`; nobody may change them."""
    table = pkgutil.get_data("meshwright", path)
    assert table is not None, f"the package is installed without {path}"
    return tuple(csv.DictReader(table.decode("utf-8").splitlines()))
