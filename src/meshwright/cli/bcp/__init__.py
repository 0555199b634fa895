"""Workspaces, datasets and results on NVIDIA Base Command Platform, through NGC CLI up to
4.19.1."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = ("list", "create", "upload", "download", "mount", "unmount")
