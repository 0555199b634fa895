"""One rule: a key, a sentence, the check on columns, the message for one layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.search.rules.software import NEWEST_MEGATRON, parse_version, stack_rules
from meshwright.values.data import package_rows
from meshwright.values.layout import Layout, Layouts
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.workload import Workload

__all__ = [
    "Bools",
    "Rule",
    "RuleCase",
    "Violation",
    "divisors",
    "nearest_multiples",
    "nearest_words",
    "rule",
    "some",
]

Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleCase:
    """What a layout is held against."""

    model: ModelSpec
    work: Workload
    num_chips: int
    stack: Stack
    megatron_version: str = NEWEST_MEGATRON

    @property
    def copies_kv(self) -> bool:
        """Whether KV heads may be copied where tp is a multiple of them."""
        since = stack_rules(self.stack).kv_copies_from
        return since is not None and parse_version(self.megatron_version) >= since


Keeps = Callable[[Layouts, RuleCase], Any]
Message = Callable[[Layout, RuleCase], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One thing that training software demands of a layout."""

    key: str
    sentence: str
    columns: tuple[str, ...]
    """Fields of Layout that the rule looks at."""
    keeps: Keeps
    """Whether each row keeps the rule, (N,), or all do."""
    message: Message
    """For a layout that breaks it: what was given and what is valid."""
    family: str
    """Of the software whose rule it is; `any` for all."""
    source: str

    def holds(self, case: RuleCase) -> bool:
        """Whether the rule belongs to the software of the case."""
        return self.family in ("any", case.stack.family)


def rule(key: str, keeps: Keeps, message: Message) -> Rule:
    """Return the rule that `search/rules/rules.csv` describes under a key."""
    [row] = [row for row in package_rows("search/rules/rules.csv") if row["key"] == key]
    columns = tuple(row["columns"].split())
    return Rule(**{**row, "columns": columns}, keeps=keeps, message=message)  # type: ignore[arg-type]  # fields by heading


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A rule that a layout breaks."""

    key: str
    sentence: str
    message: str


def divisors(number: int, most: int | None = None) -> list[int]:
    """Return the divisors of a number up to `most`, in order."""
    found: set[int] = set()
    at = 1
    while at * at <= number:
        if number % at == 0:
            found |= {at, number // at}
        at += 1
    return sorted(d for d in found if most is None or d <= most)


def some(values: Any, most: int = 12) -> str:
    """Write a few values for people."""
    listed = [str(v) for v in values]
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")


def nearest_multiples(value: int, step: int) -> list[int]:
    """Return the multiples of `step` around `value`, without 0."""
    low = value // step * step
    return [v for v in (low, low + step) if v > 0] if low != value else [value]


def nearest_words(value: int, step: int) -> str:
    """Write those multiples for people."""
    return " or ".join(map(str, nearest_multiples(value, step)))
