"""What rests on one table of published runs alone: constants that say so, and words that only its
rows have."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import meshwright
from meshwright.runs.measured.cells import (
    Cells,
    Rule,
    TruthTable,
    framework_words,
    read_rules,
    stack_words,
    without_measurements,
)
from meshwright.values.data import published_rows
from meshwright_truth.page import markdown

__all__ = ["Fitted", "Studies", "fitted_constants", "studies_of", "studies_section"]

_SOURCES = (".csv", ".toml", ".py")
_FITTED = r"\b(?:fitted|set by)\b[^.;\"]{0,200}?\b(?P<table>%s)\b"
"""How a source says that its number was fitted on a table's runs."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """Numbers of one file of the package that are fitted on one table."""

    file: str
    table: str
    count: int
    """Lines that say so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Studies:
    """What rests on one table alone."""

    fitted: tuple[Fitted, ...]
    in_package: Mapping[str, tuple[str, ...]]
    """By table, patterns of the package's words that no other table's rows have."""
    beside: Mapping[str, tuple[str, ...]]
    """The same of the words that lie beside the tables, outside the wheel."""


def fitted_constants(root: Path, tables: Sequence[str]) -> tuple[Fitted, ...]:
    """Return the numbers under a folder whose source says that they are fitted on a table."""
    names = "|".join(sorted(map(re.escape, tables), key=len, reverse=True))
    pattern = re.compile(_FITTED % names)
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(root.rglob("*")):
        if path.suffix not in _SOURCES:
            continue
        text = path.read_text(encoding="utf-8")
        # A docstring is wrapped; a line of a table is one number's source.
        parts = [" ".join(text.split())] if path.suffix == ".py" else text.splitlines()
        for part in parts:
            for table in {match["table"] for match in pattern.finditer(part)}:
                found[path.relative_to(root).as_posix(), table] += 1
    return tuple(Fitted(*key, count) for key, count in sorted(found.items()))


def studies_of(tables: Sequence[TruthTable]) -> Studies:
    """Return what rests on one table alone: words on one of these, constants on any that is
    published here."""
    users: dict[tuple[str, str], set[str]] = defaultdict(set)
    for table in tables:
        for row in table.rows:
            for key in _used(Cells(without_measurements(row))):
                users[key].add(table.name)
    beside = {
        (name, row["match"])
        for name in ("frameworks", "stack_words")
        for row in published_rows(f"words/{name}.csv")
    }
    found: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for key, tables_of in sorted(users.items()):
        if len(tables_of) == 1:
            found[key in beside].setdefault(next(iter(tables_of)), []).append(key[1])
    in_package, outside = ({name: tuple(each) for name, each in side.items()} for side in found)
    published = [path.stem for path in Path(__file__).parents[1].glob("*.csv")]
    fitted = fitted_constants(Path(meshwright.__file__).parent, published)
    return Studies(fitted=fitted, in_package=in_package, beside=outside)


def _used(cells: Cells) -> set[tuple[str, str]]:
    """The lines of words that decide something of a row: of those for one field the first."""
    frameworks = read_rules("frameworks").first(framework_words(cells))
    used = {("frameworks", frameworks["match"])} if frameworks else set()
    text, decided = stack_words(cells), set[str]()
    for rule in read_rules("stack_words").rules:
        fields = _fields(rule) - decided
        if fields and rule.pattern.search(text):
            used.add(("stack_words", rule["match"]))
            decided |= fields
    return used


def _fields(rule: Rule) -> set[str]:
    return {word.partition("=")[0] for word in rule["changes"].split()}


_HEAD = """## What rests on one study

Constants of the package whose source says that they are fitted on one of these tables, and words that rows of one table alone have. *In the package*: names of
software, its releases and its settings, which anybody's rows may have. *Beside the tables*: how one study was run, or how its table writes that down
(`truth/meshwright_truth/words`). The wheel lacks these; a clone installed with `pip install -e .` has them.
"""  # noqa: E501


def studies_section(found: Studies) -> str:
    """Return the section of the page: counts by table, then each constant and each word."""
    constants: Counter[str] = Counter()
    for fitted in found.fitted:
        constants[fitted.table] += fitted.count
    rows = [
        [name, *(str(n or "") for n in counts)]
        for name in sorted({*constants, *found.in_package, *found.beside})
        if (counts := (constants[name], *_counts(found, name)))
    ]
    sums = [sum(constants.values()), *(sum(map(len, side.values())) for side in _sides(found))]
    heading = ["table", "fitted constants", "words in the package", "words beside the tables"]
    return "\n".join(
        [
            _HEAD,
            markdown(heading, [*rows, ["all", *map(str, sums)]]),
            "",
            *(f"- `{f.file}`: {f.count} fitted on {f.table}." for f in found.fitted),
            *(
                f"- Words of the package that {name} alone has: {_code(patterns)}."
                for name, patterns in sorted(found.in_package.items())
            ),
            "",
        ]
    )


def _sides(found: Studies) -> tuple[Mapping[str, tuple[str, ...]], ...]:
    return found.in_package, found.beside


def _counts(found: Studies, name: str) -> tuple[int, ...]:
    return tuple(len(side.get(name, ())) for side in _sides(found))


def _code(patterns: Sequence[str]) -> str:
    return ", ".join(f"`{pattern}`" for pattern in patterns)
