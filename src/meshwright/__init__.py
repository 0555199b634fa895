"""Find the fastest way to train or serve a large language model on a given cluster.

Commands have a function of their name here, which takes the same words:
`meshwright.plan("llama3-70b", "h100:256", seq=8192, gbs=512)`. Steps of a corpus
are in `meshwright.data`, inference in `meshwright.serving`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright import data, serving
    from meshwright.api import (
        diff,
        doctor,
        estimate,
        explain,
        export,
        plan,
        plan_front,
        size,
        train,
        tune,
        ui,
        why_oom,
    )
    from meshwright.api.catalogues import (
        describe_chip,
        describe_model,
        list_chips,
        list_models,
        list_servers,
    )
    from meshwright.api.checkpoints import ckpt_plan
    from meshwright.api.measured import anchor, calibrate, predict, profile, validate
    from meshwright.api.report import write_report
    from meshwright.compat.apss import apss
    from meshwright.runs.watch.follow import watch_run
    from meshwright.runs.workflows.render import workflow
    from meshwright.search.request import PlanRequest
    from meshwright.values.errors import ConfigError, MeshwrightError

__all__ = [
    "ConfigError",
    "MeshwrightError",
    "PlanRequest",
    "__version__",
    "anchor",
    "apss",
    "calibrate",
    "ckpt_plan",
    "data",
    "describe_chip",
    "describe_model",
    "diff",
    "doctor",
    "estimate",
    "explain",
    "export",
    "list_chips",
    "list_models",
    "list_servers",
    "plan",
    "plan_front",
    "predict",
    "profile",
    "serving",
    "size",
    "train",
    "tune",
    "ui",
    "validate",
    "watch_run",
    "why_oom",
    "workflow",
    "write_report",
]

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(("ConfigError", "MeshwrightError"), "values.errors"),
    **dict.fromkeys(
        ("describe_chip", "describe_model", "list_chips", "list_models", "list_servers"),
        "api.catalogues",
    ),
    **dict.fromkeys(("anchor", "calibrate", "predict", "profile", "validate"), "api.measured"),
    "PlanRequest": "search.request",
    "apss": "compat.apss",
    "ckpt_plan": "api.checkpoints",
    "watch_run": "runs.watch.follow",
    "workflow": "runs.workflows.render",
    "write_report": "api.report",
}
"""Modules of the names that are not of `api`; each is loaded when first asked for, so that `--help`
stays light."""
_ROOMS = ("data", "serving")


def __getattr__(name: str) -> Any:
    """Return a name of the Python API."""
    if name in _ROOMS:
        return import_module(f"meshwright.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    return getattr(import_module(f"meshwright.{_HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
