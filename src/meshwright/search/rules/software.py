"""What differs from one training software to the next: the table `search/rules/stack_rules.csv`."""

from __future__ import annotations

import csv
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast

from meshwright.values.errors import ConfigError
from meshwright.values.stack import Stack

__all__ = [
    "DEALT",
    "NEWEST_MEGATRON",
    "StackRules",
    "known_version",
    "parse_version",
    "stack_rules",
    "stacks_with_axis",
    "stacks_with_schedule",
]

DEALT = ("any", "filled")
"""Values of `StackRules.splits` where a configuration says how many layers each stage holds."""
NEWEST_MEGATRON = "0.20"
"""Version of Megatron-Core that the rules were last read against."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StackRules:
    """What one training software accepts."""

    stack: str
    shardings: tuple[str, ...]
    """Accepted with any pipeline."""
    shardings_without_pp: tuple[str, ...]
    """Accepted with pp=1 only."""
    searched_shardings: tuple[str, ...]
    """Tried by a search that is not told which."""
    recompute_modules: tuple[str, ...]
    """Accepted names for selective recompute."""
    searched_modules: tuple[tuple[str, ...], ...]
    """Sets of modules tried by a search."""
    full_by_blocks: bool
    """Whether full recompute may be of some of a chunk's layers; FSDP's and nanotron's switches are
    for all."""
    axes: tuple[str, ...]
    """Kinds of parallelism beside data parallelism that it has: of tp, sp, pp, vpp, cp, ep, etp."""
    schedules: tuple[str, ...]
    """Accepted schedules of a pipeline."""
    searched_schedules: tuple[str, ...]
    """Tried by a search that is not told which."""
    splits: Literal["any", "filled", "fixed", "cost"]
    """Layers of stages: any numbers, where the last chunk may hold the head alone; of one layer at
    least; as even as can be; or by nanotron's rule, `split.split_by_cost`."""
    precisions: tuple[str, ...]
    """Number formats of its matrix products."""
    half_by_sharding: bool
    """Whether it computes in half precision only where data parallelism shards, or does all."""
    kv_copies_from: tuple[int, ...] | None
    """Version of Megatron-Core from which on KV heads are copied where tp is a multiple of them;
    None: never."""
    source: str


def stack_rules(stack: Stack) -> StackRules:
    """Return the row of a stack, or that of its family where it has none."""
    rows = _rows()
    return rows.get(stack.name, rows[stack.family])


@cache
def _rows() -> dict[str, StackRules]:
    table = pkgutil.get_data("meshwright", "search/rules/stack_rules.csv")
    assert table is not None, "the package is installed without search/rules/stack_rules.csv"
    return {row["stack"]: _row(row) for row in csv.DictReader(table.decode().splitlines())}


def _row(cells: dict[str, str]) -> StackRules:
    return StackRules(
        stack=cells["stack"],
        shardings=tuple(cells["shardings"].split()),
        shardings_without_pp=tuple(cells["shardings_without_pp"].split()),
        searched_shardings=tuple(cells["searched_shardings"].split()),
        recompute_modules=tuple(cells["recompute_modules"].split()),
        searched_modules=tuple(
            tuple(words.split("+")) for words in cells["searched_modules"].split()
        ),
        full_by_blocks=cells["full_by_blocks"] == "1",
        axes=tuple(cells["axes"].split()),
        schedules=tuple(cells["schedules"].split()),
        searched_schedules=tuple(cells["searched_schedules"].split()),
        splits=cast("Literal['any', 'filled', 'fixed', 'cost']", cells["splits"]),
        precisions=tuple(cells["precisions"].split()),
        half_by_sharding=cells["half_by_sharding"] == "1",
        kv_copies_from=parse_version(cells["kv_copies_from"]) if cells["kv_copies_from"] else None,
        source=cells["source"],
    )


def parse_version(text: str) -> tuple[int, ...]:
    """Read `0.15.1` or `core_v0.16.0rc2` as numbers that compare."""
    match = re.fullmatch(
        r"(?:core_)?v?([0-9]{1,4}(?:\.[0-9]{1,4}){0,3})(?:rc[0-9]+)?", text.strip()
    )
    if match is None:
        raise ConfigError(
            f"megatron_version={text}: expected a version such as 0.15.1 or {NEWEST_MEGATRON}"
        )
    return tuple(int(number) for number in match[1].split("."))


def known_version(text: str) -> tuple[int, ...]:
    """Read a version of Megatron-Core whose rules are known; ConfigError of a later one than they
    were read against."""
    found = parse_version(text)
    if found[:2] > parse_version(NEWEST_MEGATRON):
        raise ConfigError(
            f"megatron_version={text}: what Megatron-Core accepts was read up to {NEWEST_MEGATRON};"
            f" give {NEWEST_MEGATRON}"
        )
    return found


def stacks_with_axis(axis: str) -> tuple[str, ...]:
    """Return the stacks of the table that have a kind of parallelism."""
    return tuple(row.stack for row in _rows().values() if axis in row.axes)


def stacks_with_schedule(schedule: str) -> tuple[str, ...]:
    """Return the stacks of the table that accept a schedule."""
    return tuple(row.stack for row in _rows().values() if schedule in row.schedules)
