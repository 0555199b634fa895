"""gigatoken in the place of a library: the same ids, many times as fast, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.encoders.encoder import Encoded, Encoder
from meshwright.data.encoders.libraries import (
    HuggingFaceEncoder,
    SentencePieceEncoder,
    TiktokenEncoder,
)

__all__ = ["GigatokenEncoder", "NotTheSame", "open_gigatoken"]

CACHE_BYTES = 400 << 20
"""Growth of this process beyond which the encoder's cache of words is thrown away: a worker stays
under 1 GiB."""


class NotTheSame(Exception):
    """gigatoken can't stand in for this tokenizer; the message says why."""


class GigatokenEncoder:
    """gigatoken beside the encoder that it stands in for."""

    def __init__(self, reference: Encoder, open_backend: Callable[[], Any]) -> None:
        self.reference, self._open_backend = reference, open_backend
        self.vocab_size, self.eod, self.around = (
            reference.vocab_size,
            reference.eod,
            reference.around,
        )
        self._backend = open_backend()
        self._base_bytes = _resident_bytes()

    @property
    def name(self) -> str:
        """Both libraries with their versions."""
        return f"gigatoken {_version()} for {self.reference.name}"

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of texts, on this thread alone; one by one, which is as fast, and
        `encode_batch` imports awkward (0.3 s)."""
        if _resident_bytes() > self._base_bytes + CACHE_BYTES:
            del self._backend
            self._backend = self._open_backend()
            self._base_bytes = _resident_bytes()
        rows = [self._backend.encode(text) for text in texts]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return Encoded(
            ids=np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint32), lengths=lengths
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self.reference.decode(ids)

    def specials(self) -> Sequence[str]:
        """Return the texts of special tokens."""
        return self.reference.specials()


@lru_cache(maxsize=1)
def open_gigatoken(reference: Encoder) -> GigatokenEncoder:
    """Open gigatoken for a tokenizer, once, unchecked; NotTheSame where it is not installed or does
    not know such tokenizers."""
    try:
        import gigatoken
    except ImportError:
        raise NotTheSame("it is not installed (pip install 'meshwright[data]')") from None
    source: Any
    opener: Callable[[Any], Any]
    if isinstance(reference, HuggingFaceEncoder):
        source, opener = reference.to_json(), gigatoken.Tokenizer.from_json
    elif isinstance(reference, SentencePieceEncoder):
        source, opener = reference.path, gigatoken.Tokenizer.from_sentencepiece
    elif isinstance(reference, TiktokenEncoder) and reference.path is not None:
        source, opener = reference.path, gigatoken.Tokenizer.from_tiktoken
    else:
        raise NotTheSame("it does not know how this tokenizer cuts text")
    try:
        return GigatokenEncoder(reference, lambda: opener(source).backend)
    except (
        Exception
    ) as error:  # the library raises what it likes for tokenizers that it does not know
        raise NotTheSame(" ".join(f"it can't open this tokenizer: {error}".split())) from None


def _version() -> str:
    from importlib.metadata import version

    return version("gigatoken")


def _resident_bytes() -> int:
    """Return the memory of this process that is in use; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return pages * 4096
