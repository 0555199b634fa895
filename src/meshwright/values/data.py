"""The package's own tables; nobody may change what these return."""

from __future__ import annotations

import csv
import pkgutil
from functools import cache
from typing import Any

from meshwright.values.text import read_yaml

__all__ = ["package_rows", "package_yaml"]


@cache
def package_rows(path: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a CSV that the package brings along, by its headings:
    `package_rows("trust/residuals.csv")`."""
    return tuple(csv.DictReader(_text(path).splitlines()))


@cache
def package_yaml(path: str) -> dict[str, Any]:
    """Return the mapping of a YAML file that the package brings along."""
    return read_yaml(_text(path), what=path)


def _text(path: str) -> str:
    content = pkgutil.get_data("meshwright", path)
    assert content is not None, f"the package is installed without {path}"
    return content.decode("utf-8")
