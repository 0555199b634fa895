"""What an encoder is, and what names one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.values.errors import ConfigError

__all__ = ["KINDS", "Encoded", "Encoder", "EncoderSpec", "Engine", "Kind", "flattened"]

Kind = Literal["huggingface", "gpt2", "bert-cased", "bert-lower", "sentencepiece", "tiktoken"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Engine = Literal["gigatoken", "library"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSpec:
    """A tokenizer, as the user names it; with the files' content it decides every id."""

    kind: Kind
    model: str | None = None
    """tokenizer.json or its folder, SentencePiece model, .tiktoken file, Megatron's TikTokenizer's
    .json, name of a tiktoken encoding."""
    vocab_file: str | None = None
    merge_file: str | None = None
    eod: str | None = None
    """Text or id of the token that ends a document; None: what the tokenizer itself calls so."""
    special_tokens: bool = True
    """Whether what a tokenizer.json puts around each text (a begin-of-text token) is kept, as
    Megatron's HuggingFaceTokenizer does."""
    tiktoken_pattern: str | None = None
    tiktoken_num_special: int = 1000
    vocab_size: int | None = None
    """Of TikTokenizer: the vocabulary is cut to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Ids of several texts."""

    ids: NDArray[Any]
    """Of all texts, one after the other, integers of any width."""
    lengths: NDArray[np.int64]
    """Of each text, (texts,)."""


class Encoder(Protocol):
    """One tokenizer of one library."""

    def __hash__(self) -> int:
        """One that is opened is itself alone."""

    @property
    def name(self) -> str:
        """Library and version."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""

    @property
    def eod(self) -> int | None:
        """Id of the token that ends a document; None where the tokenizer names none."""

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that stand before and behind every text and are not in what `encode` returns."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of texts, without those of `around`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    def specials(self) -> Sequence[str]:
        """Return the texts of special tokens; where they stand in a document they become their
        ids."""


def flattened(rows: Sequence[Sequence[int]]) -> Encoded:
    """Return lists of ids as one array."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return Encoded(
        ids=np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum())),
        lengths=lengths,
    )


def eod_of(
    wanted: str | None, ids: dict[str, int], names: Sequence[str], *, vocab_size: int
) -> int | None:
    """Return the id of the end of a document: the token or the number that the user gave, else the
    first of `names` that exists.

    ConfigError where the user's is no token.
    """
    if wanted is None:
        return next((ids[name] for name in names if name in ids), None)
    if wanted in ids:
        return ids[wanted]
    if wanted.isdecimal() and int(wanted) < vocab_size:
        return int(wanted)
    near = ", ".join(repr(name) for name in names if name in ids) or "none of the usual ones"
    raise ConfigError(
        f"--eod {wanted!r}: no token of this tokenizer, nor an id below {vocab_size}; it has {near}"
    )
