"""CSV tables: the published runs that users name, and the package's own tables of rules."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from meshwright.errors import ConfigError

__all__ = ["REQUIRED", "Rule", "Rules", "TruthTable", "read_rules", "read_truth"]

REQUIRED = ("row_id", "model", "gpu")
"""Columns without which no row could be answered."""


@dataclass(frozen=True, slots=True)
class TruthTable:
    """One CSV file of published runs."""

    name: str
    """The file's name without `.csv`: the `source` of its predictions."""
    rows: tuple[dict[str, str], ...]


def read_truth(path: Path) -> TruthTable:
    """Read a table of training runs; ConfigError in one line where it is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a CSV file in UTF-8") from None
    try:
        found = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path}: not a CSV file ({error})") from None
    if not found:
        raise ConfigError(f"{path}: no rows; expected a header and one line per run")
    _check_columns(path, list(found[0]))
    return TruthTable(name=path.stem, rows=tuple({k: v or "" for k, v in row.items() if k is not None} for row in found))


def _check_columns(path: Path, columns: list[str | None]) -> None:
    if "ttft_ms" in columns or "tpot_ms" in columns:
        raise ConfigError(f"{path}: a table of serving runs; use `meshwright serving predict`")
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise ConfigError(f"{path}: column {', '.join(missing)} is missing; expected a table of training runs")


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of a table of rules: a pattern, and what holds where it matches."""

    pattern: re.Pattern[str]
    fields: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.fields[name]


@dataclass(frozen=True, slots=True)
class Rules:
    """A table of rules; the first that matches holds."""

    name: str
    rules: tuple[Rule, ...]

    def first(self, text: str) -> Rule | None:
        """Return the first rule whose pattern occurs in the lower-case text."""
        return next((rule for rule in self.rules if rule.pattern.search(text.lower())), None)


@cache
def read_rules(name: str) -> Rules:
    """Read `presets/<name>.csv`, whose column `match` holds a pattern."""
    text = resources.files("meshwright").joinpath("presets", f"{name}.csv").read_text(encoding="utf-8")
    lines = csv.DictReader(io.StringIO(text))
    return Rules(name, tuple(Rule(re.compile(line.pop("match")), line) for line in lines))
