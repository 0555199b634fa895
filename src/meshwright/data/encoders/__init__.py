"""Texts to token ids: one encoder per tokenizer library, and gigatoken in the place of one where it
gives the same ids."""

from __future__ import annotations

__all__: list[str] = []
