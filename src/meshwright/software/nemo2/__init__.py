"""NeMo 2.0: recipes for nemo_run, written and read, and its log."""

from __future__ import annotations
