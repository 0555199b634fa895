"""Megatron-LM's arguments, from its parser's source: the name that each flag sets, and its
default."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.recipes.trees import Tree, read_tree

__all__ = ["Argument", "megatron_arguments"]

_PARSER = "megatron/training/arguments.py"
_FOLDERS = (_PARSER, "megatron/training/config", "megatron/core")
_UNKNOWN = "?"
"""A default that is no literal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """One name that the parser sets."""

    name: str
    flag: str
    off: bool
    """Whether the flag stands for no."""
    default: Any


def megatron_arguments(repository: Path, commit: str) -> dict[str, Argument]:
    """Return every argument of a commit by the name that it sets."""
    tree = read_tree(repository, commit, folders=_FOLDERS, endings=(".py",))
    classes = dict(_classes(tree))
    found: dict[str, Argument] = {}
    for function in ast.parse(tree[_PARSER]).body:
        lists = dict(_lists(function))
        for node in ast.walk(function):
            for argument in _arguments(node, lists, classes):
                found.setdefault(argument.name, argument)
    return found


def _lists(function: ast.stmt) -> Iterator[tuple[str, list[str]]]:
    """Yield the lists of words that a function names."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            yield _name(node.targets[0]), [str(_literal(word)) for word in node.value.elts]


def _arguments(
    node: ast.AST, lists: Mapping[str, list[str]], classes: Mapping[str, ast.ClassDef]
) -> Iterator[Argument]:
    named = _name(node.func) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Call) and named == "add_argument":
        yield _added(node)
    elif isinstance(node, ast.Call) and named == "ArgumentGroupFactory":
        yield from _of_dataclass(node, lists, classes)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _added(call: ast.Call) -> Argument:
    """Read `add_argument("--flag", action=..., dest=..., default=...)`."""
    flags = [word for word in map(_literal, call.args) if str(word).startswith("--")]
    named = {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
    action = named.get("action")
    usual = {"store_true": False, "store_false": True}.get(str(action))
    return Argument(
        name=str(named.get("dest") or str(flags[0])[2:].replace("-", "_")),
        flag=str(flags[0]),
        off=action == "store_false",
        default=named.get("default", usual),
    )


def _classes(tree: Tree) -> Iterator[tuple[str, ast.ClassDef]]:
    for path, text in tree.items():
        if path != _PARSER:
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef):
                    yield node.name, node


def _of_dataclass(
    call: ast.Call, lists: Mapping[str, list[str]], classes: Mapping[str, ast.ClassDef]
) -> Iterator[Argument]:
    """Yield the fields of `ArgumentGroupFactory(Class, exclude=[...])` as its flags."""
    given = next((one.value for one in call.keywords if one.arg == "exclude"), None)
    named = lists.get(_name(given), []) if isinstance(given, ast.Name) else _literal(given) or []
    for name, value in _fields(classes[_name(call.args[0])], classes).items():
        field = _field(name, value)
        if name not in named and field is not None:
            yield field


def _fields(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> dict[str, ast.expr | None]:
    found: dict[str, ast.expr | None] = {}
    for base in node.bases:
        if _name(base) in classes:
            found |= _fields(classes[_name(base)], classes)
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found[line.target.id] = line.value
    return found


def _field(name: str, value: ast.expr | None) -> Argument | None:
    """Read a field's flag; None for one that no caller sets."""
    default, meta = _literal(value), {}
    if isinstance(value, ast.Call):
        named = {keyword.arg: keyword.value for keyword in value.keywords}
        if _literal(named.get("init")) is False:
            return None
        default, meta = _literal(named.get("default")), _meta(named.get("metadata"))
    default = meta.get("default", default)
    off = default is True
    flags = meta.get("arg_names") or [f"--{'no-' if off else ''}{name.replace('_', '-')}"]
    return Argument(name=str(meta.get("dest", name)), flag=str(flags[0]), off=off, default=default)


def _meta(node: ast.expr | None) -> dict[str, Any]:
    """Return what the literal part of `{"argparse_meta": {...}}` says."""
    if not isinstance(node, ast.Dict):
        return {}
    inner = next(iter(node.values), None)
    if not isinstance(inner, ast.Dict):
        return {}
    pairs = zip(inner.keys, inner.values, strict=True)
    found = {_literal(key): _literal(value) for key, value in pairs}
    return {str(key): value for key, value in found.items() if value != _UNKNOWN}


def _literal(node: ast.expr | None) -> Any:
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _UNKNOWN
