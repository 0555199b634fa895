"""Arithmetic on arrays, number by number, stretched to each other."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from meshwright.report.whatif_page.arrays.array import asarray, by_row, ndarray, stretch
from meshwright.report.whatif_page.arrays.kinds import AS, KIND_OF, TYPES, common
from meshwright.report.whatif_page.arrays.places import shared_shape
from meshwright.report.whatif_page.arrays.sums import larger, smaller

__all__ = [
    "abs_",
    "add",
    "around",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "broadcast_arrays",
    "ceil",
    "clip",
    "divide",
    "divmod_",
    "errstate",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "isfinite",
    "isin",
    "isnan",
    "left_shift",
    "log",
    "log1p",
    "log2",
    "logical_not",
    "maximum",
    "minimum",
    "mod",
    "multiply",
    "power",
    "right_shift",
    "rint",
    "sqrt",
    "subtract",
    "where",
]


Two = Callable[[Any, Any], Any]
_WIDER = {a + b: common(a, b) for a in "bif" for b in "bif"}
_OF_NUMBER: dict[tuple[str, Any], str] = {
    **{(kind, float): "f" for kind in "bif"},
    **{(kind, int): common(kind, "i") for kind in "bif"},
    **{(kind, bool): kind for kind in "bif"},
}


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, ndarray) else KIND_OF[type(value)]


def _plain(a: Any) -> Any:
    return a if isinstance(a, (ndarray, int, float)) else asarray(a)


def _pair(function: Two, a: Any, b: Any, kind: str) -> ndarray:
    """Call a function on two, of which one is an array, stretched to each other."""
    if type(b) is not ndarray:
        return ndarray([function(x, b) for x in a.values], a.shape, kind)
    if type(a) is not ndarray:
        return ndarray([function(a, y) for y in b.values], b.shape, kind)
    if a.shape == b.shape:
        return ndarray(list(map(function, a.values, b.values)), a.shape, kind)
    if len(b.values) == 1 and len(b.shape) <= len(a.shape):
        y = b.values[0]
        return ndarray([function(x, y) for x in a.values], a.shape, kind)
    if len(a.values) == 1 and len(a.shape) <= len(b.shape):
        x = a.values[0]
        return ndarray([function(x, y) for y in b.values], b.shape, kind)
    shape = shared_shape(a.shape, b.shape)
    return ndarray(
        list(map(function, stretch(a, shape).values, stretch(b, shape).values)), shape, kind
    )


def _function(function: Two, *, of_truths: Two | None = None, kind: str = "") -> Any:
    """A function of two: their wider kind, or always one `kind`; of two truths another function.

    Most calls are of an array with an array or a number of its own kind, and come first.
    """

    def called(a: Any, b: Any) -> Any:
        if type(a) is ndarray:
            if type(b) is ndarray:
                found = _WIDER[a.kind + b.kind]
            elif type(b) in (float, int, bool):
                found = _OF_NUMBER[a.kind, type(b)]
            else:
                return called(a, asarray(b))
        else:
            a, b = _plain(a), _plain(b)
            if type(a) is ndarray:
                return called(a, b)
            if type(b) is not ndarray:
                return function(a, b)
            found = _OF_NUMBER[b.kind, type(a)]
        do = of_truths if found == "b" and of_truths is not None else function
        return _pair(do, a, b, kind or found)

    return called


def _extreme(function: Two, folded: Any, by_row_: Any) -> Any:
    """Of two kinds the number is of the wider one, whichever was chosen."""
    plain = _function(function)

    def called(a: Any, b: Any) -> Any:
        found = plain(a, b)
        if type(found) is ndarray and found.kind == "f":
            found.values = [
                value if type(value) is float else float(value) for value in found.values
            ]
        return found

    def put(given: ndarray, places: Any, values: Any) -> None:
        """Keep the more extreme in each place, place after place."""
        at, new = asarray(places), stretch(values, asarray(places).shape)
        for place, value in zip(at.values, new.values, strict=True):
            given.values[place] = function(given.values[place], value)

    called.at = put  # type: ignore[attr-defined]
    called.reduce = folded  # type: ignore[attr-defined]
    called.accumulate = by_row_  # type: ignore[attr-defined]
    return called


def _power(x: Any, y: Any) -> Any:
    if type(x) is int and type(y) is int:
        return x**y
    if y == 2:
        return x * x
    if y == 1:
        return x
    return math.sqrt(x) if y == 0.5 else math.pow(x, y)


def _over(x: Any, y: Any) -> float:
    if y:
        return float(x / y)
    if x == 0 or math.isnan(x):
        return math.nan
    return math.copysign(math.inf, x) * math.copysign(1, y)


def _rows_so_far(function: Two) -> Any:
    return lambda given: by_row(
        asarray(given), -1, lambda row: list(accumulate(row, function)), asarray(given).kind
    )


add = _function(operator.add, of_truths=operator.or_)
subtract = _function(operator.sub, of_truths=operator.xor)
multiply = _function(operator.mul, of_truths=operator.and_)
floor_divide = _function(operator.floordiv)
mod = _function(operator.mod)
power = _function(_power)
divide = _function(_over, kind="f")
maximum = _extreme(larger, lambda given: asarray(given).max(axis=0), _rows_so_far(larger))
minimum = _extreme(smaller, lambda given: asarray(given).min(axis=0), _rows_so_far(smaller))
bitwise_and, bitwise_or = _function(operator.and_), _function(operator.or_)
bitwise_xor = _function(operator.xor)
left_shift, right_shift = _function(operator.lshift), _function(operator.rshift)

_OPERATORS = {
    **{"add": add, "sub": subtract, "mul": multiply, "truediv": divide, "floordiv": floor_divide},
    **{"mod": mod, "pow": power, "and": bitwise_and, "or": bitwise_or, "xor": bitwise_xor},
    **{"lshift": left_shift, "rshift": right_shift},
}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def _turned(called: Two) -> Two:
    return lambda self, other: called(other, self)


def _set_operators() -> None:
    """Give arrays the signs of arithmetic."""
    for name, called in _OPERATORS.items():
        setattr(ndarray, f"__{name}__", called)
        setattr(ndarray, f"__r{name}__", _turned(called))
    for name in _COMPARISONS:
        setattr(ndarray, f"__{name}__", _function(getattr(operator, name), kind="b"))


_set_operators()


def divmod_(a: Any, b: Any) -> tuple[Any, Any]:
    """How often, and what is left."""
    return floor_divide(a, b), mod(a, b)


def _each(function: Callable[[Any], Any], kind: str | None = "f") -> Any:
    def called(given: Any) -> Any:
        if not isinstance(given, (ndarray, list, tuple)):
            return function(given)
        array_ = asarray(given)
        return ndarray(list(map(function, array_.values)), array_.shape, kind or array_.kind)

    return called


def _log(x: float) -> float:
    return math.log(x) if x > 0 else (-math.inf if x == 0 else math.nan)


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.78 else math.inf


def _round(x: float) -> float:
    return float(round(x)) if math.isfinite(x) else x


def _whole(function: Callable[[Any], int]) -> Any:
    return _each(lambda x: float(function(x)) if math.isfinite(x) else float(x))


exp, log, log2, log1p, sqrt = (_each(f) for f in (_exp, _log, math.log2, math.log1p, math.sqrt))
ceil, floor, rint = _whole(math.ceil), _whole(math.floor), _each(_round)
isfinite, isnan, logical_not = (_each(f, "b") for f in (math.isfinite, math.isnan, operator.not_))
expm1 = _each(math.expm1)
abs_ = _each(abs, None)


def around(given: Any, digits: int = 0) -> Any:
    """To so many digits, halves to the even one."""
    scale = 10.0**digits
    return divide(rint(multiply(given, scale)), scale)


def where(condition: Any, yes: Any = None, no: Any = None) -> Any:
    """The one or the other; of a condition alone, where it holds."""
    if yes is None:
        return asarray(condition).nonzero()
    kind = common(_kind(_plain(yes)), _kind(_plain(no)))
    tests = asarray(condition)
    if len(tests.values) == 1 and not (isinstance(yes, ndarray) or isinstance(no, ndarray)):
        return ndarray([AS[kind](yes if tests.values[0] else no)], tests.shape, kind)
    a, b = asarray(yes), asarray(no)
    shape = shared_shape(tests.shape, a.shape, b.shape)
    as_kind = AS[kind]
    if len(tests.values) == 1:
        chosen = a if tests.values[0] else b
        found = stretch(chosen, shape)
        return found if found.kind == kind else found.astype(TYPES[kind])
    rows = zip(*(stretch(x, shape).values for x in (tests, a, b)), strict=True)
    return ndarray([as_kind(y if c else n) for c, y, n in rows], shape, kind)


def clip(given: Any, low: Any, high: Any) -> Any:
    """Held between two."""
    found = given if low is None else maximum(given, low)
    return found if high is None else minimum(found, high)


def isin(given: Any, chosen: Any) -> ndarray:
    """Whether each is one of some."""
    array_, among = asarray(given), set(asarray(list(chosen)).values)
    return ndarray([value in among for value in array_.values], array_.shape, "b")


def broadcast_arrays(*given: Any) -> tuple[ndarray, ...]:
    """All in the shape that they share."""
    arrays = [asarray(one) for one in given]
    shape = shared_shape(*(one.shape for one in arrays))
    return tuple(stretch(one, shape) for one in arrays)


class errstate:
    """Silence about infinities, which nothing here speaks of anyway."""

    def __init__(self, **_: str) -> None:
        """Which are silenced plays no part."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass
