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

__all__ = [
    "REQUIRED",
    "OtherTable",
    "Rule",
    "Rules",
    "TruthTable",
    "read_cells",
    "read_rules",
    "read_table_file",
    "read_truth",
    "require_rows",
]

REQUIRED = ("row_id", "model", "gpu")
"""Columns without which no row could be answered."""


@dataclass(frozen=True, slots=True)
class TruthTable:
    """One CSV file of published runs."""

    name: str
    """The file's name without `.csv`: the `source` of its predictions."""
    rows: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class OtherTable:
    """A CSV file of something else."""

    path: Path
    reason: str
    """Why it is no table of training runs."""


def read_truth(path: Path) -> TruthTable:
    """Read a table of training runs; ConfigError in one line where it is none."""
    table = read_table_file(path)
    if isinstance(table, OtherTable):
        raise ConfigError(f"{path}: {table.reason}")
    return table


def read_table_file(path: Path) -> TruthTable | OtherTable:
    """Read a table, and tell training runs from others by the heading; ConfigError in one line
    where it is broken."""
    columns, rows = read_cells(path)
    if columns and (reason := _other_than_training(columns)):
        return OtherTable(path, reason)
    return TruthTable(name=path.stem, rows=require_rows(rows, path))


def read_cells(path: Path) -> tuple[list[str], tuple[dict[str, str], ...]]:
    """Return the columns of a CSV file and its rows, what is missing blank; ConfigError in one line
    where it is none."""
    lines = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    try:
        columns, found = list(lines.fieldnames or ()), list(lines)
    except csv.Error as error:
        raise ConfigError(f"{path}: not a CSV file ({error})") from None
    return columns, tuple({k: v or "" for k, v in row.items() if k is not None} for row in found)


def require_rows(rows: tuple[dict[str, str], ...], path: Path) -> tuple[dict[str, str], ...]:
    """Return the rows; ConfigError where there are none."""
    if not rows:
        raise ConfigError(f"{path}: no rows; expected a header and one line per run")
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a CSV file in UTF-8") from None


def _other_than_training(columns: list[str]) -> str:
    """Say why a table of these columns is no table of training runs; nothing where it is one."""
    if "ttft_ms" in columns or "tpot_ms" in columns:
        return "a table of serving runs; expected a table of training runs"
    missing = [name for name in REQUIRED if name not in columns]
    return (
        f"column {', '.join(missing)} is missing; expected a table of training runs"
        if missing
        else ""
    )


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
    text = (
        resources.files("meshwright").joinpath("presets", f"{name}.csv").read_text(encoding="utf-8")
    )
    lines = csv.DictReader(io.StringIO(text))
    return Rules(name, tuple(Rule(re.compile(line.pop("match")), line) for line in lines))
