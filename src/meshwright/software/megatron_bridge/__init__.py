"""Megatron-Bridge: recipes in Python and YAML, written and read."""

from __future__ import annotations
