"""Recipes as NeMo 2.0 has them, `run.Partial` and `run.Config` of nemo_run, read and changed
without importing either.

Both are Buildables of fiddle: `__fn_or_cls__` is what is called, `__arguments__` what was given;
attributes read as given, else as the default of the callable. Mappings with `_target_`, the YAML of
nemo_run, are the same tree.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from meshwright.errors import ConfigError

__all__ = ["changed", "is_object", "part_of", "tree_of"]

_DIMS = ("num_layers", "hidden_size")
"""Where one is set by hand, the class's name does not say the model any more, and all fields are
read."""
_PLAIN = (bool, int, float, str)


def is_object(recipe: Any) -> bool:
    """Whether this is a Buildable."""
    return hasattr(recipe, "__fn_or_cls__") and hasattr(recipe, "__arguments__")


def tree_of(recipe: Any) -> dict[str, Any]:
    """Return a recipe as the mapping that nemo_run writes; of the model's configuration every dim,
    where any was set by hand."""
    if isinstance(recipe, Mapping):
        return copy.deepcopy(dict(recipe))
    tree = _tree(recipe)
    assert isinstance(tree, dict), "an object with arguments is a mapping"
    config = getattr(getattr(recipe, "model", None), "config", None)
    if is_object(config) and _wants_dims(config):
        tree["model"]["config"] = {**_dims(config), **tree["model"]["config"]}
    return tree


def _tree(value: Any) -> Any:
    if is_object(value):
        return {
            "_target_": _name(value.__fn_or_cls__),
            **{key: _tree(entry) for key, entry in value.__arguments__.items()},
        }
    if isinstance(value, list | tuple):
        return [_tree(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): _tree(entry) for key, entry in value.items()}
    if value is None or isinstance(value, _PLAIN):
        return value
    return {"_target_": _name(value), "_call_": False}


def _name(target: Any) -> str:
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    return (
        f"{module}.{name}" if module and name else str(target)
    )  # a dtype has neither, and reads torch.bfloat16


def _wants_dims(config: Any) -> bool:
    """Whether dims are set by hand, here or in a class of the user's own."""
    return any(
        name in config.__arguments__ for name in _DIMS
    ) or not config.__fn_or_cls__.__module__.startswith("nemo.")


def _dims(config: Any) -> dict[str, Any]:
    """Every plain field of a configuration, with its default where it was not given."""
    names = (
        [field.name for field in fields(config.__fn_or_cls__)]
        if is_dataclass(config.__fn_or_cls__)
        else list(config.__arguments__)
    )
    found = {}
    for name in names:
        try:
            value = getattr(config, name)
        except (AttributeError, ValueError):
            continue  # a field with neither a value nor a default
        if isinstance(value, _PLAIN):
            found[name] = value
    return found


def part_of(recipe: Any, path: str) -> Any:
    """Return the part at a dotted path, itself where it is empty; ConfigError where there is
    none."""
    part = recipe
    for name in path.split(".") if path else ():
        part = part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
        if part is None:
            raise ConfigError(f"recipe: has no {path}")
    return part


def changed(recipe: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a recipe, object or mapping, with some dotted keys set; ConfigError where a
    part on the way is missing."""
    found = copy.deepcopy(recipe)
    for path, value in values.items():
        above, _, last = path.rpartition(".")
        _set(part_of(found, above), last, value, path=path)
    return found


def _set(part: Any, name: str, value: Any, *, path: str) -> None:
    if isinstance(part, dict):
        part[name] = value
        return
    try:
        setattr(part, name, value)
    except AttributeError:  # fiddle's, of a parameter that the class has not
        if value is not None:
            raise ConfigError(
                f"recipe: {path}={value}: {_name(part.__fn_or_cls__)} has no such parameter"
            ) from None
