"""Corpora to Megatron's .bin/.idx: sharded by rank, resumable, atomic."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []

_API = {
    "blend": "blending",
    "concat": "join",
    "download": "fetching",
    "extract": "unpack",
    "merge": "merging",
    "plan": "footprint",
    "run": "pipeline",
    "stats": "counting",
    "tokenize": "tokenizing",
    "verify": "verifying",
    "wiki": "articles",
}
"""The step's function by the module of this package that holds it; loaded when first asked for. No module has the name of a function."""


def __getattr__(name: str) -> Any:
    """Return the function of a step."""
    if name not in _API:
        raise AttributeError(f"module 'meshwright.data' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"meshwright.data.{_API[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted([*__all__, *_API])
