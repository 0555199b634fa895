"""What each term of a price stands on: the function that made it, the constants that move it, and
by how much. Nothing is listed by hand: one layout is priced again with each constant elsewhere."""

from __future__ import annotations

import ast
import re
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
from meshwright.values.units import GIB, KIB, MIB, format_seconds

__all__ = [
    "Basis",
    "Constant",
    "Depth",
    "Provenance",
    "Worked",
    "basis_of",
    "standing",
    "value_words",
    "worked",
]

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
    first, for the others their first: of linear layers one of a layer, not the output head's."""
    part, _, name = term.partition(".")
    marks = {name} if part == "time" else {term, part}
    calls = [call for call in reversed(trace.calls) if marks & set(call.terms)]
    exact = next((call for call in calls if _gives(call.result, value)), None)
    ordered = calls if exact is None else [exact, *calls]
    shown = {_path(call): call for call in calls}
    if exact is not None:
        shown[_path(exact)] = exact
    return tuple(shown[path] for path in dict.fromkeys(_path(call) for call in ordered))


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


HEADINGS = ("Formula", "Units", "Source", "Valid", "Checked")
MOST_INPUTS = 8
"""Inputs shown of a function whose formula is in words: more would not be read."""
MOST_LISTED = 4
"""Numbers of an array that are written out; of a longer one the ends."""
_CALLS: dict[str, Any] = {"sum": np.sum, "max": np.maximum, "min": np.minimum}
"""What a closed form may call."""


_RATES = {"bytes_per_s": " B/s", "flops_per_s": " FLOP/s", "tokens_per_s": " tokens/s"}
"""Units by the end of a name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Worked:
    """One formula at work."""

    function: str
    """Module and function under `meshwright`."""
    formula: str
    """As the docstring has it."""
    numbers: str | None
    """The same with its numbers; None where the formula is in words."""
    value: float | None
    """What the numbers come to, evaluated by themselves; None where it is in words."""
    inputs: Mapping[str, str]
    """The function's numbers by name."""
    result: str
    source: str


def worked(call: Call) -> Worked:
    """Put a call's numbers into its formula; one in words stands beside a list of inputs."""
    sections = _sections(call.doc)
    formula = sections.get("Formula", "")
    closed = _expression(formula.partition(";")[0])
    numbers = {name: _number(each) for name, each in call.values.items()}
    values = {name: number for name, number in numbers.items() if number is not None}
    shown = {} if closed is None else _inputs(closed, call.values)
    known = closed is not None and all(each is not None for each in shown.values())
    return Worked(
        function=f"{call.module.removeprefix('meshwright.')}.{call.function}",
        formula=formula,
        numbers=_put_in(formula.partition(";")[0], shown) if known else None,
        value=_value(closed, call.values) if known and closed is not None else None,
        inputs={
            name: value_words(name, each)
            for name, each in (shown if known else dict(_first(values))).items()
        },
        result=_result_words(call),
        source=sections.get("Source", ""),
    )


def _first(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(values.items())[:MOST_INPUTS]


def _sections(doc: str) -> dict[str, str]:
    names = "|".join(HEADINGS)
    pattern = rf"^\s*({names}):[ \t]*(.*?)(?=^\s*(?:{names}):|\Z)"
    found = re.findall(pattern, doc, flags=re.MULTILINE | re.DOTALL)
    return {heading: " ".join(body.split()) for heading, body in found}


def _expression(text: str) -> ast.Expression | None:
    """A formula that is one expression of names and numbers; None where it is in words."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return None
    kinds = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Call, ast.Name)
    allowed = (*kinds, ast.Attribute, ast.Constant, ast.expr_context)
    return tree if all(isinstance(node, allowed) for node in ast.walk(tree)) else None


def _inputs(tree: ast.Expression, values: Mapping[str, Any]) -> dict[str, Any]:
    """Every name of an expression, dots included, with its number; None where there is none."""
    inner = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }  # `chip` of `chip.launch_s`
    found = {}
    for node in ast.walk(tree):
        is_name = isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner
        if is_name and ast.unparse(node) not in _CALLS:
            found[ast.unparse(node)] = _looked_up(ast.unparse(node), values)
    return found


def _looked_up(path: str, values: Mapping[str, Any]) -> Any:
    first, *rest = path.split(".")
    held = values.get(first)
    for name in rest:
        held = getattr(held, name, None)
    return _number(held)


def _value(tree: ast.Expression, values: Mapping[str, Any]) -> float:
    """Evaluate an expression over numbers; arrays of one layout are added up entry by entry."""
    names = _inputs(tree, values)
    plain = {path: f"_{place}" for place, path in enumerate(names)}
    text = _replaced(ast.unparse(tree), plain)
    numbers = {plain[path]: number for path, number in names.items()}
    return float(np.max(eval(text, {"__builtins__": {}, **_CALLS}, numbers)))


def _put_in(formula: str, shown: Mapping[str, Any]) -> str:
    return _replaced(formula, {name: value_words(name, each) for name, each in shown.items()})


def _replaced(text: str, words: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_][\w.]*", lambda found: words.get(found[0], found[0]), text)


def _number(value: Any) -> Any:
    """A number, or an array of them for each segment or stage; None for all else."""
    if isinstance(value, bool | str) or value is None or isinstance(value, Mapping):
        return None
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    array = array.squeeze()
    return None if not array.size else float(array) if array.ndim == 0 else array


def value_words(name: str, value: Any) -> str:
    """Write a number with the unit that its name ends in."""
    found = np.ravel(np.asarray(value, dtype=np.float64))
    if found.size == 1:
        return _one(name, float(found[0]))
    if found.size <= MOST_LISTED:
        return f"[{', '.join(_one(name, float(each)) for each in found)}]"
    return f"[{_one(name, float(found.min()))} to {_one(name, float(found.max()))}]"


def _one(name: str, value: float) -> str:
    if name.endswith(("_bytes", ".bytes")):
        return _bytes_words(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return f"{value:.4g} s" if abs(value) >= 1 or not value else format_seconds(value)
    unit = next((words for end, words in _RATES.items() if name.endswith(end)), "")
    return f"{value:.6g}{unit}"


def _bytes_words(value: float) -> str:
    """Bytes in the largest unit that they fill; few ones, as of a parameter, as they are."""
    if abs(value) < KIB:
        return f"{value:g} B"
    return f"{value / GIB:.4g} GiB" if abs(value) >= GIB else f"{value / MIB:.4g} MiB"


def _result_words(call: Call) -> str:
    number = _number(call.result)
    return "" if number is None else value_words(call.function, number)
