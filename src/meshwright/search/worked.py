"""A function's formula with the numbers of one call put in."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.search.twin import Call
from meshwright.values.units import GIB, KIB, MIB, format_seconds

__all__ = ["Worked", "value_words", "worked"]

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
