"""Serve a model: predict published serving runs, and see how right that is."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = ("predict", "validate")
