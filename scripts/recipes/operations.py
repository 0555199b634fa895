"""What Python's operators answer for the values of evaluate.py, unknown ones among them."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from scripts.recipes.values import (
    BoundMethod,
    ClassValue,
    External,
    FunctionValue,
    ModuleValue,
    Raised,
    Record,
    unknown,
)

__all__ = ["OPAQUE", "binary", "compare", "is_unknown", "items", "truth"]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.BitOr: operator.or_,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.Sub: operator.sub,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.NotEq: operator.ne,
    ast.NotIn: lambda left, right: left not in right,
}
OPAQUE = (Record, External, ClassValue, FunctionValue, ModuleValue, BoundMethod)
"""Values that no operator of Python's takes."""


def binary(op: ast.operator, left: Any, right: Any) -> Any:
    """Return `left op right`."""
    if isinstance(left, OPAQUE) or isinstance(right, OPAQUE) or type(op) not in _BINARY:
        return unknown("operation")
    return _BINARY[type(op)](left, right)


def is_unknown(value: Any) -> bool:
    """True for a name or an object from outside the repository."""
    return isinstance(value, External) or (isinstance(value, Record) and value.of_class is None)


def truth(value: Any) -> bool:
    """Return whether a value counts as true; an unknown one does not."""
    if is_unknown(value):
        return False
    return True if isinstance(value, OPAQUE) else bool(value)


def items(value: Any) -> list[Any]:
    """Return the items of something that is looped over; of an unknown one none."""
    return [] if isinstance(value, OPAQUE) else list(value)


def compare(op: ast.cmpop, left: Any, right: Any) -> Any:
    """Return `left op right` of a comparison, unknown where a side is."""
    if isinstance(op, ast.Is | ast.IsNot):
        return (left is right) == isinstance(op, ast.Is)
    if is_unknown(left) or is_unknown(right):
        if isinstance(left, External) and isinstance(right, External):
            return _COMPARED[type(op)](left, right)
        return unknown("comparison")
    try:
        return _COMPARED[type(op)](left, right)
    except TypeError as error:
        raise Raised(repr(error)) from None
