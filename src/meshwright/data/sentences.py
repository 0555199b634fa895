"""Texts into sentences, for BERT and T5: NLTK's Punkt, as Megatron's preprocess_data.py splits them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from meshwright.errors import ConfigError, MissingExtraError

__all__ = ["sentence_splitter"]

MOST_CHARACTERS = 1_000_000
"""A longer text is split in pieces of this length, as Megatron does (preprocess_data.py)."""


@lru_cache(maxsize=1)
def sentence_splitter(language: str) -> Callable[[str], Sequence[str]]:
    """Return a function from a text to its sentences; ConfigError where NLTK's data for the language is not on this machine."""
    try:
        from nltk.tokenize.punkt import PunktTokenizer
    except ImportError:
        raise MissingExtraError("nltk", "data") from None
    try:
        punkt = PunktTokenizer(language)
    except (LookupError, OSError):
        raise ConfigError(
            f"--split-sentences: NLTK's model for {language!r} is not on this machine: python -m nltk.downloader punkt_tab,"
            " or set NLTK_DATA to a folder that holds tokenizers/punkt_tab"
        ) from None

    def split(text: str) -> list[str]:
        parts = range(0, len(text), MOST_CHARACTERS)
        return [sentence for start in parts for sentence in punkt.tokenize(text[start : start + MOST_CHARACTERS])]

    return split
