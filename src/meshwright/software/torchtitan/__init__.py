"""torchtitan: its TOML and its Python form, written and read, and its log."""

from __future__ import annotations
