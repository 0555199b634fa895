"""What each term of a price stands on: the function that made it, the constants that move it, and
by how much. Nothing is listed by hand: one layout is priced again with each constant elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from meshwright.search.constants import (
    Holders,
    Kind,
    Movable,
    holders_of,
    movables,
    stack_of,
    with_held,
)
from meshwright.search.problem import Problem
from meshwright.search.twin import Call, Trace, Twin, twin, watched
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout

__all__ = ["Basis", "Constant", "Depth", "Provenance", "basis_of", "standing"]

Depth = Literal["functions", "constants"]
"""Whether to name the functions alone, or to move every constant, some hundred pricings."""

NOISE = 1e-11
"""Share of the sum below which a term has not moved: rounding of sums of a few hundred numbers."""

Terms = dict[str, float]
Pricing = Callable[[Twin, Holders], Terms]
"""Price with these holders in the twin: terms by `time.NAME` in seconds, `memory.NAME` in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """A constant that moves a term."""

    name: str
    value: float | str | bool
    kind: Kind
    source: str
    unit: str
    """What the changes are for: `1 %` more, or what else can be done to it."""
    term_change: float | None
    """By how much the term moves, seconds or bytes; None where only a table's shape matters."""
    sum_change: float | None
    """By how much the sum moves, the step or the memory of the stage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What a term stands on."""

    formula: str
    """Module and function under `meshwright` whose result the term is."""
    kind: Kind
    """Of the constants, that of the one which moves the term most; `formula` without any."""
    constants: tuple[Constant, ...] = ()
    """Those that move it most first; switches and zeros last."""
    calls: tuple[Call, ...] = ()
    """One call of each function that had a part in it; first the one whose result it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """The provenance of every term of one price."""

    time: Mapping[str, Provenance]
    memory: Mapping[str, Provenance]


def basis_of(layout: Layout, problem: Problem, *, depth: Depth = "constants") -> Basis:
    """Return what every term of a layout stands on, of memory on its fullest stage.

    Formula:  change of a term = term(constant * 1.01) - term(constant), one constant at a time,
              through the very functions that priced it, event simulation included
    Units:    seconds, bytes, for 1 % more of a constant.
    Source:   definition of a finite difference.
    Valid:    what another bound hides by more than 1 % has no part in a term.
    Checked:  tests/search/test_provenance.py
    """
    setting = problem.setting
    fullest: list[int] = []

    def priced(where: Twin, held: Holders) -> Terms:
        moved = replace(
            setting, pool=with_held(setting.pool, held), stack=stack_of(held), calibration=None
        )
        there = replace(problem, setting=moved)
        [found] = where.module("meshwright.search.refine").reprice(there, [layout])
        fullest.append(found.fullest)  # the first counts, of the pricing where nothing is moved
        memory = found.memory_of(fullest[0])
        return {f"time.{name}": seconds for name, seconds in found.time_s.items()} | {
            f"memory.{name}": held_bytes for name, held_bytes in memory.items()
        }

    found = standing(priced, holders_of(setting.pool, setting.stack), depth=depth)
    parts: dict[str, dict[str, Provenance]] = {"time": {}, "memory": {}}
    for name, each in found.items():
        part, _, term = name.partition(".")
        parts[part][term] = each
    return Basis(**parts)


def standing(
    pricing: Pricing, holders: Holders, *, depth: Depth = "constants"
) -> dict[str, Provenance]:
    """Return what each term of a price stands on."""
    where = twin()
    with where.lock:
        now = pricing(where, holders)
        where.forget()
        watching = {owner: watched(held) for owner, held in holders.items()}
        trace = where.trace(lambda: pricing(where, watching))
        moved = list(_moved(pricing, holders, trace, where, now)) if depth == "constants" else []
    return {term: _provenance(term, value, trace, moved) for term, value in now.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Moved:
    """A constant with the changes of all terms that it moves."""

    movable: Movable
    changes: Terms
    sums: Terms
    signed: bool
    """Whether the changes can be given for 1 % more."""


def _moved(
    pricing: Pricing, holders: Holders, trace: Trace, where: Twin, now: Terms
) -> Iterator[_Moved]:
    """Yield the constants that move anything; the first move that does is the one that counts."""
    for movable in movables(holders, trace, where):
        for sign, move in movable.moves:
            try:
                to = move()
                with to.inside():
                    there = pricing(where, to.holders)
            except (ConfigError, ValueError, AssertionError):
                continue  # beyond what the field may be: a share above 1
            changes = _changes(now, there, sign or 1.0)
            if changes:
                sums = {part: _sum(changes, part) for part in ("time", "memory")}
                yield _Moved(movable=movable, changes=changes, sums=sums, signed=sign != 0.0)
                break


def _changes(now: Terms, there: Terms, sign: float) -> Terms:
    sums = {part: abs(_sum(now, part)) for part in ("time", "memory")}
    found = {term: sign * (there[term] - value) for term, value in now.items()}
    return {
        term: change
        for term, change in found.items()
        if abs(change) > NOISE * sums[term.partition(".")[0]]
    }


def _sum(terms: Terms, part: str) -> float:
    return sum(value for term, value in terms.items() if term.startswith(f"{part}."))


def _provenance(term: str, value: float, trace: Trace, moved: list[_Moved]) -> Provenance:
    part = term.partition(".")[0]
    constants = sorted(
        (_constant(each, term, part) for each in moved if term in each.changes), key=_order
    )
    calls = _calls(term, value, trace)
    return Provenance(
        formula=_path(calls[0]) if calls else "",
        kind=constants[0].kind if constants else "formula",
        constants=tuple(constants),
        calls=calls,
    )


def _calls(term: str, value: float, trace: Trace) -> tuple[Call, ...]:
    """One call of each function that made a part of a term: the one that gave its very value
    first, for the others their last."""
    part, _, name = term.partition(".")
    marks = {name} if part == "time" else {term, part}
    calls = [call for call in reversed(trace.calls) if marks & set(call.terms)]
    exact = next((call for call in calls if _gives(call.result, value)), None)
    ordered = calls if exact is None else [exact, *calls]
    return tuple(
        {_path(call): call for call in reversed(ordered)}[path]
        for path in dict.fromkeys(_path(call) for call in ordered)
    )


def _gives(result: Any, value: float) -> bool:
    """Whether a result is a term: one number, or one for each layout priced at once."""
    if not isinstance(result, float | np.ndarray):
        return False
    found = np.ravel(result)
    return found.size == 1 and bool(np.isclose(found[0], value, rtol=1e-12, atol=0.0))


def _path(call: Call) -> str:
    return f"{call.module.removeprefix('meshwright.')}.{call.function}"


def _constant(moved: _Moved, term: str, part: str) -> Constant:
    of = moved.movable
    return Constant(
        name=of.name,
        value=of.value,
        kind=of.kind,
        source=of.source,
        unit=of.unit,
        term_change=moved.changes[term] if moved.signed else None,
        sum_change=moved.sums[part] if moved.signed else None,
    )


def _order(constant: Constant) -> tuple[bool, float, str]:
    """Figures before switches and zeros, those that move most first."""
    size: Any = abs(constant.term_change or 0.0)
    return constant.unit != "1 %", -size, constant.name
