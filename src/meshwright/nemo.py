"""NeMo's tools in Python: `AutoConfigurator, generate_configs, get_results` of NeMo 2.0, and the
grid of fine-tuning runs."""

from __future__ import annotations

from meshwright.doors.nemo2.configs import generate_configs
from meshwright.doors.nemo2.configurator import AutoConfigurator
from meshwright.doors.nemo2.grid import generate_grid, get_grid_results
from meshwright.doors.nemo2.grid_runs import run_grid
from meshwright.doors.nemo2.results import get_results

__all__ = [
    "AutoConfigurator",
    "generate_configs",
    "generate_grid",
    "get_grid_results",
    "get_results",
    "run_grid",
]
