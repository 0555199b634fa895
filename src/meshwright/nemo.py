"""NeMo's tools in Python: `AutoConfigurator, generate_configs, get_results` of NeMo 2.0, and the
grid of fine-tuning runs."""

from __future__ import annotations

from meshwright.compat.nemo2.configurator import AutoConfigurator, generate_configs
from meshwright.compat.nemo2.grid import generate_grid, get_grid_results
from meshwright.compat.nemo2.grid_runs import run_grid
from meshwright.compat.nemo2.results import get_results

__all__ = [
    "AutoConfigurator",
    "generate_configs",
    "generate_grid",
    "get_grid_results",
    "get_results",
    "run_grid",
]
