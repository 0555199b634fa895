"""Hardware: chips, links, nodes, clusters."""

from __future__ import annotations
