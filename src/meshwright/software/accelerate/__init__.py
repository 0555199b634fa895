"""Hugging Face Accelerate under transformers' Trainer: its YAML for FSDP2."""

from __future__ import annotations
