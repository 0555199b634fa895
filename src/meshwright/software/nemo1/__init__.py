"""NeMo 1.x: configurations of its launcher and of its scripts, written and read."""

from __future__ import annotations
