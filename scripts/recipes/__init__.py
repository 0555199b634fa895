"""Reads the recipes of training software from their repositories, without running any of their
code."""

from __future__ import annotations
