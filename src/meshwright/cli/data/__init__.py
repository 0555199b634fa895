"""Corpora to Megatron's .bin/.idx: every step shared by ranks and workers, resumable after a kill
at any moment."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = {
    **dict.fromkeys(("run", "download", "extract", "concat", "wiki"), "fetching"),
    **dict.fromkeys(("train-tokenizer", "tokenize"), "tokens"),
    **dict.fromkeys(("merge", "check", "verify", "stats", "blend", "plan"), "pairs"),
}
"""Module of this package of each command, in the order of the help."""
