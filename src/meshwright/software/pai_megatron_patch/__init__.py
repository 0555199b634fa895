"""Pai-Megatron-Patch: command lines of Megatron-LM with the patch's own words."""

from __future__ import annotations
