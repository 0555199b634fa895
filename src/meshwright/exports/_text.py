"""Plain values as text: TOML, Python calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Code", "python_call", "toml_text"]


class Code(str):
    """Python text that stands for itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def toml_text(sections: Mapping[str, Mapping[str, Any]], *, comment: Sequence[str]) -> str:
    """Write sections of strings, numbers, booleans and lists of them; TOML has no null, so None is
    left out."""
    blocks = ["\n".join(f"# {line}" for line in comment)]
    for name, values in sections.items():
        lines = [
            f"{key} = {_toml_value(value)}" for key, value in values.items() if value is not None
        ]
        blocks.append("\n".join([f"[{name}]", *lines]))
    return "\n\n".join(blocks) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        if value and isinstance(value[0], list):
            return "[\n" + "".join(f"  {_toml_value(entry)},\n" for entry in value) + "]"
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a TOML basic string has JSON's escapes
    return json.dumps(value) if isinstance(value, (bool, int)) else repr(float(value))


def python_call(function: str, arguments: Mapping[str, Any], *, indent: int = 0) -> str:
    """Write a call with one keyword argument a line."""
    inner = "    " * (indent + 1)
    lines = [f"{inner}{name}={value!r},\n" for name, value in arguments.items()]
    return f"{function}(\n{''.join(lines)}{'    ' * indent})"
