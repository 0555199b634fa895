"""Requests as files: read from YAML or JSON, and written so that they read back unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError

__all__ = [
    "read_request",
    "request_to_yaml",
]


def read_request(path: Path) -> dict[str, Any]:
    """Return the fields of a request file, YAML or JSON; `PlanRequest.of` makes the request of
    them."""
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"request {str(path)!r}: {getattr(error, 'strerror', None) or 'not a text in UTF-8'}"
        ) from None
    fields = _json(text, path) if path.suffix.lower() == ".json" else _yaml(text, path)
    if not isinstance(fields, dict):
        raise ConfigError(
            f"request {str(path)!r}: expected keys and values such as model: llama3-70b"
        )
    return fields


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"request {str(path)!r}: no JSON at line {error.lineno}, column {error.colno}:"
            f" {error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"request {str(path)!r}: no JSON: {str(error)[:80]}") from None


def _yaml(text: str, path: Path) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"request {str(path)!r}: no YAML{place}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"request {str(path)!r}: no YAML: {str(error).splitlines()[0][:120]}"
        ) from None


def request_to_yaml(request: PlanRequest) -> str:
    """Return a request as YAML that reads back to the same request."""
    return yaml.safe_dump(request.to_dict(), sort_keys=False, allow_unicode=True, width=120)
