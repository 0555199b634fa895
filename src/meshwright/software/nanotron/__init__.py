"""nanotron: its YAML, written and read, and its log."""

from __future__ import annotations
