"""Values: what things are. Models, hardware, layouts, workloads, units, errors."""

from __future__ import annotations
