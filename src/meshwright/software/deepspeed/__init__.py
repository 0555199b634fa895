"""DeepSpeed under transformers' Trainer: its JSON and its log."""

from __future__ import annotations
