"""Corpora to Megatron's .bin/.idx: every step shared by ranks and workers, resumable after a kill
at any moment."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = (
    "run",
    "download",
    "extract",
    "concat",
    "wiki",
    "train-tokenizer",
    "tokenize",
    "merge",
    "check",
    "verify",
    "stats",
    "blend",
    "plan",
)
"""In the order of the help; each is a module of this package."""
