"""The package's own tables, and those beside the published runs; nobody may change what these
return."""

from __future__ import annotations

import csv
import pkgutil
from functools import cache
from importlib.util import find_spec
from typing import Any

from meshwright.values.text import read_yaml

__all__ = ["package_rows", "package_yaml", "published_rows"]


@cache
def package_rows(path: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a CSV that the package brings along, by its headings:
    `package_rows("trust/residuals.csv")`."""
    return tuple(csv.DictReader(_text(path).splitlines()))


@cache
def published_rows(path: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a CSV that lies beside the published runs, in `meshwright_truth`; none in
    a wheel, which lacks it."""
    if find_spec("meshwright_truth") is None:
        return ()
    content = pkgutil.get_data("meshwright_truth", path)
    assert content is not None, f"the scorers are installed without {path}"
    return tuple(csv.DictReader(content.decode("utf-8").splitlines()))


@cache
def package_yaml(path: str) -> dict[str, Any]:
    """Return the mapping of a YAML file that the package brings along."""
    return read_yaml(_text(path), what=path)


def _text(path: str) -> str:
    content = pkgutil.get_data("meshwright", path)
    assert content is not None, f"the package is installed without {path}"
    return content.decode("utf-8")
