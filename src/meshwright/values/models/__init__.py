"""Models: shapes, presets, readers."""

from __future__ import annotations
