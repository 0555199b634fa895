"""Serving: what an iteration of an inference engine costs, what requests see of it, and which
deployment serves them best."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwright.platforms.kubernetes.serving import export_serving
    from meshwright.runs.loads.measure import measure_server
    from meshwright.runs.loads.readers import read_results
    from meshwright.runs.loads.traces import read_traffic
    from meshwright.runs.serving.tune import tune
    from meshwright.serving.fleet_search import plan_fleet
    from meshwright.serving.load import simulate_load
    from meshwright.serving.request import ServingRequest
    from meshwright.serving.search import plan, predict

__all__ = [
    "ServingRequest",
    "export_serving",
    "measure_server",
    "plan",
    "plan_fleet",
    "predict",
    "read_results",
    "read_traffic",
    "simulate_load",
    "tune",
]

_HOME = {
    "ServingRequest": "meshwright.serving.request",
    "export_serving": "meshwright.platforms.kubernetes.serving",
    "measure_server": "meshwright.runs.loads.measure",
    "plan": "meshwright.serving.search",
    "plan_fleet": "meshwright.serving.fleet_search",
    "predict": "meshwright.serving.search",
    "read_results": "meshwright.runs.loads.readers",
    "read_traffic": "meshwright.runs.loads.traces",
    "simulate_load": "meshwright.serving.load",
    "tune": "meshwright.runs.serving.tune",
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
