"""Texts into sentences, for BERT and T5: NLTK's Punkt, as Megatron's preprocess_data.py splits
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from meshwright.errors import ConfigError, MissingExtraError

__all__ = ["sentence_splitter"]

MOST_CHARACTERS = 1_000_000
"""A longer text is split in pieces of this length, as Megatron does (preprocess_data.py)."""


_KEEPS_SPACE = r"\S*%(SentEndChars)s\s*(?=(?P<after_tok>%(NonWord)s|(?P<next_tok>\S+)))"
"""Where a sentence may end, as Megatron's --keep-newlines has it: the space behind the sign is of
the sentence, and may be none."""


@lru_cache(maxsize=1)
def sentence_splitter(language: str, *, keep_newlines: bool) -> Callable[[str], Sequence[str]]:
    """Return a function from a text to its sentences, with the space behind each or without;
    TimeoutError where NLTK gives up on a text.

    ConfigError where NLTK's data for the language is not on this machine.
    """
    try:
        from nltk.tokenize.punkt import PunktLanguageVars, PunktSentenceTokenizer, PunktTokenizer
    except ImportError:
        raise MissingExtraError("nltk", "data") from None
    try:
        punkt = PunktTokenizer(language)
    except (LookupError, OSError, ValueError):
        raise ConfigError(
            f"--split-sentences: NLTK's model for {language!r} is not on this machine: python -m"
            " nltk.downloader punkt_tab, or set NLTK_DATA to a folder that holds"
            f" tokenizers/punkt_tab/{language} (NLTK reads no tokenizers/punkt any more)"
        ) from None
    if keep_newlines:
        words = type("KeepsSpace", (PunktLanguageVars,), {"_period_context_fmt": _KEEPS_SPACE})
        punkt = PunktSentenceTokenizer(train_text=punkt._params, lang_vars=words())

    def split(text: str) -> list[str]:
        parts = range(0, len(text), MOST_CHARACTERS)
        return [
            sentence
            for start in parts
            for sentence in punkt.tokenize(text[start : start + MOST_CHARACTERS])
        ]

    return split
