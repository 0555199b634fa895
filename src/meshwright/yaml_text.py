"""YAML as values: read and written."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from meshwright.errors import ConfigError

if TYPE_CHECKING:
    import yaml

__all__ = ["read_yaml", "write_yaml"]

_ODD = re.compile(r"[^\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]|[\u2028\u2029\ufeff]")
"""Signs that YAML reads as ends of lines, or not at all, unless they are escaped."""


def read_yaml(text: str, *, what: str) -> dict[str, Any]:
    """Return the mapping that a text holds; ConfigError in one line where it holds something
    else."""
    import yaml

    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{what}: no YAML: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{what}: expected keys and values, got {type(values).__name__}")
    return values


def write_yaml(values: dict[str, Any]) -> str:
    """Return a mapping as text, in its order: several lines are a block, and whatever is in a text
    reads back as it was."""
    import yaml

    return yaml.dump(values, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=140)


@cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes each text so that YAML's own ideas of lines and blanks do not change it, and equal
        parts twice."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        block = value.endswith("\n") and value.count("\n") > 1 and not _ODD.search(value)
        style = "|" if block else '"' if "\n" in value or _ODD.search(value) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return Dumper
