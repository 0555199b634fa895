"""YAML as values: read and written."""

from __future__ import annotations

from typing import Any

from meshwright.errors import ConfigError

__all__ = ["read_yaml", "write_yaml"]


def read_yaml(text: str, *, what: str) -> dict[str, Any]:
    """Return the mapping that a text holds; ConfigError in one line where it holds something else."""
    import yaml

    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{what}: no YAML: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{what}: expected keys and values, got {type(values).__name__}")
    return values


def write_yaml(values: dict[str, Any]) -> str:
    """Return a mapping as text, in its order."""
    import yaml

    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=140)
