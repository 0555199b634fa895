"""Serving: what an iteration of an inference engine costs, what requests see of it, and which deployment serves them best."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["ServingRequest", "plan", "predict", "simulate_load"]

_HOME = {
    "ServingRequest": "meshwright.serving.request",
    "plan": "meshwright.serving.search",
    "predict": "meshwright.serving.search",
    "simulate_load": "meshwright.serving.load",
}
"""Modules that hold the functions; loaded when first asked for."""


def __getattr__(name: str) -> Any:
    """Return a function of the Python API."""
    if name not in _HOME:
        raise AttributeError(f"module 'meshwright.serving' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
