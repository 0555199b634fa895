"""The built-in functions that recipes call, for the values of evaluate.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scripts.recipes.values import ClassValue, External, ModuleValue, Raised, Record, unknown

if TYPE_CHECKING:
    from scripts.recipes.evaluate import Evaluator

__all__ = ["BUILTINS", "COMMON_EXTERNALS", "PLAIN", "of_type"]

PLAIN = (bool, int, float, str, list, dict, tuple, set)
"""Types whose methods may be called as they are."""
_CONTAINERS = (list, dict, tuple, set)


def of_type(target: Any, kind: type) -> bool:
    """True for a method of a list, dict or the like, which may hold unknown values."""
    return isinstance(getattr(target, "__self__", None), (kind, *_CONTAINERS)) or (
        target in _CONTAINERS
    )


def _with_evaluator(function: Callable[..., Any]) -> Callable[..., Any]:
    function.takes_evaluator = True  # type: ignore[attr-defined]
    return function


@_with_evaluator
def _getattr(evaluator: Evaluator, owner: Any, name: str, *default: Any) -> Any:
    if isinstance(owner, ModuleValue) and name not in owner.values:
        if default:
            return default[0]
        raise Raised(f"{owner.name} has no {name}")
    return evaluator.attribute(owner, name)


@_with_evaluator
def _hasattr(evaluator: Evaluator, owner: Any, name: str) -> bool:
    if isinstance(owner, PLAIN):
        return hasattr(owner, name)
    return not isinstance(owner, ModuleValue) or name in owner.values


@_with_evaluator
def _setattr(evaluator: Evaluator, owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, Record):
        owner.known[name] = value


@_with_evaluator
def _isinstance(evaluator: Evaluator, value: Any, kinds: Any) -> bool:
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if isinstance(kind, type) and not isinstance(value, Record):
            if isinstance(value, kind):
                return True
        elif isinstance(kind, ClassValue | External) and isinstance(value, Record):
            name = kind.node.name if isinstance(kind, ClassValue) else kind.name
            if value.kind.lstrip("?").rpartition(".")[2] == name.rpartition(".")[2]:
                return True
    return False


@_with_evaluator
def _vars(evaluator: Evaluator, owner: Record) -> dict[str, Any]:
    return dict(owner.known)


BUILTINS: dict[str, Any] = {
    **{kind.__name__: kind for kind in PLAIN},
    **{
        function.__name__: function
        for function in (abs, all, any, enumerate, len, max, min, range, reversed, round)
    },
    "sorted": sorted,
    "sum": sum,
    "zip": zip,
    "getattr": _getattr,
    "hasattr": _hasattr,
    "isinstance": _isinstance,
    "setattr": _setattr,
    "vars": _vars,
    "Ellipsis": None,
}


def _replace(evaluator: Evaluator, record: Any, **named: Any) -> Any:
    if not isinstance(record, Record):
        return unknown("replace")
    return replace(record, known={**record.known, **named})


def _deepcopy(evaluator: Evaluator, value: Any, *_: Any) -> Any:
    if isinstance(value, Record):
        known = {name: _deepcopy(evaluator, held) for name, held in value.known.items()}
        return replace(value, known=known)
    if isinstance(value, dict):
        return {key: _deepcopy(evaluator, held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_deepcopy(evaluator, held) for held in value)
    return value


def _import_module(evaluator: Evaluator, name: str) -> ModuleValue:
    module = evaluator.module(name)
    if module is None:
        raise Raised(f"no module {name}")
    return module


COMMON_EXTERNALS: dict[str, Any] = {
    "copy.deepcopy": _deepcopy,
    "dataclasses.replace": _replace,
    "importlib.import_module": _import_module,
    "os.path.exists": lambda evaluator, path: True,
}
"""What names of Python's library mean."""
