"""Find the fastest way to train or serve a large language model on a given cluster."""

from __future__ import annotations

from typing import Any

__all__ = ["__version__"]

__version__ = "0.1.0"

_API = dict.fromkeys(
    ("diff", "doctor", "estimate", "explain", "export", "plan", "size", "train", "tune", "ui", "why_oom"), "meshwright.api"
) | {
    "apss": "meshwright.doors.apss",
    "ckpt_plan": "meshwright.ckpt",
    "watch_run": "meshwright.watch.loop",
    "workflow": "meshwright.workflows",
    "write_report": "meshwright.reporting",
}
"""Functions of the Python API, by the module that holds them; loaded when first asked for, so that `--help` stays light."""


def __getattr__(name: str) -> Any:
    """Return a function of the Python API."""
    if name not in _API:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_API[name]), name)


def __dir__() -> list[str]:
    """Return the public names, the API's among them."""
    return sorted([*__all__, *_API])
