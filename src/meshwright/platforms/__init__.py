"""Platforms: the text of their jobs, their executors and their states, one file or folder each."""

from __future__ import annotations
