"""NeMo 2.0's AutoConfigurator: `from meshwright.nemo import AutoConfigurator, generate_configs, get_results`."""

from __future__ import annotations

from meshwright.doors.nemo2.configs import generate_configs
from meshwright.doors.nemo2.configurator import AutoConfigurator
from meshwright.doors.nemo2.results import get_results

__all__ = ["AutoConfigurator", "generate_configs", "get_results"]
