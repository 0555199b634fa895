"""Checkpoints of a training: how large, how often, which stay, how much disk."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = ("plan",)
