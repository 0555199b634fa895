"""Slurm: batch scripts, and jobs through its own commands."""

from __future__ import annotations
