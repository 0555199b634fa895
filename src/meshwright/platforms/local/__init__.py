"""This machine: torchrun by hand, and processes that a watcher outlives."""

from __future__ import annotations
