"""The embedded trainer: its log."""

from __future__ import annotations
