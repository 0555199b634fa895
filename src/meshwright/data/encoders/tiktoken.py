"""Encodings of tiktoken: OpenAI's by name or file, any other .tiktoken file with its pattern, and
Megatron's TikTokenizer."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.encoders.encoder import Encoded, EncoderSpec, eod_of
from meshwright.errors import ConfigError, MissingExtraError, UnknownNameError

__all__ = ["TiktokenEncoder", "open_tiktoken"]

_V1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_V2 = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MEGATRON_PATTERNS = {"v1": _V1, "v2": _V2}
"""How text is cut before its bytes are merged: --tiktoken-pattern of Megatron-Core
(tiktoken_tokenizer.py)."""
MEGATRON_SPECIALS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
"""The first ids of Megatron's TikTokenizer; `<SPECIAL_n>` fills the rest."""
MEGATRON_VOCAB_SIZE = 2**17
_END = "<|endoftext|>"


class TiktokenEncoder:
    """An encoding of tiktoken; special tokens in a text become their ids, as in Megatron."""

    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __init__(
        self, encoding: Any, *, eod: str | None, end: str, path: str | None = None
    ) -> None:
        import tiktoken

        self.encoding, self.path, self.name = encoding, path, f"tiktoken {tiktoken.__version__}"
        self.vocab_size: int = encoding.max_token_value + 1
        specials = {
            text: encoding.encode_single_token(text) for text in encoding.special_tokens_set
        }
        self.eod = eod_of(eod, specials, (end,), vocab_size=self.vocab_size)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of texts."""
        rows = [self.encoding.encode_to_numpy(text, allowed_special="all") for text in texts]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return Encoded(
            ids=np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint32), lengths=lengths
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(self.encoding.decode([int(token) for token in ids]))

    def specials(self) -> Sequence[str]:
        """Return the texts of the special tokens."""
        return sorted(self.encoding.special_tokens_set)


def open_tiktoken(spec: EncoderSpec) -> TiktokenEncoder:
    """Open the encoding of a spec; ConfigError where a file is absent or broken, or the way to cut
    text is not known."""
    try:
        import tiktoken
    except ImportError:
        raise MissingExtraError("tiktoken", "data") from None
    if spec.model is None:
        raise ConfigError(
            "tiktoken needs --tokenizer with a .tiktoken file, Megatron's .json, or the name of an"
            " encoding"
        )
    path = Path(spec.model)
    if path.is_file():
        return _megatron(spec, path) if path.suffix == ".json" else _ranks_file(spec, path)
    if spec.model in tiktoken.list_encoding_names():
        return TiktokenEncoder(tiktoken.get_encoding(spec.model), eod=spec.eod, end=_END)
    raise UnknownNameError(
        "file or encoding of tiktoken", spec.model, tiktoken.list_encoding_names()
    )


def _ranks_file(spec: EncoderSpec, path: Path) -> TiktokenEncoder:
    """Open a .tiktoken file: one of OpenAI's by its name, whose hash tiktoken checks, else with the
    pattern that was given."""
    import tiktoken
    from tiktoken_ext import openai_public

    known = openai_public.ENCODING_CONSTRUCTORS.get(path.stem)
    if known is not None and spec.tiktoken_pattern is None:
        from unittest.mock import (
            patch,
        )  # a fourteenth of a second, which every worker would take to start

        with patch.object(
            openai_public,
            "load_tiktoken_bpe",
            lambda _url, expected_hash: _read_ranks(path, expected_hash),
        ):
            return TiktokenEncoder(
                tiktoken.Encoding(**known()), eod=spec.eod, end=_END, path=str(path)
            )
    if spec.tiktoken_pattern is None:
        raise ConfigError(
            f"{path}: a .tiktoken file does not say how text is cut before its bytes are merged:"
            f" name it after its encoding ({', '.join(openai_public.ENCODING_CONSTRUCTORS)}), or"
            " give --tiktoken-pattern (v1, v2 or a regular expression)"
        )
    ranks = _read_ranks(path)
    pattern = MEGATRON_PATTERNS.get(spec.tiktoken_pattern, spec.tiktoken_pattern)
    specials = {_END: max(ranks.values()) + 1}
    encoding = tiktoken.Encoding(
        name=path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials
    )
    return TiktokenEncoder(encoding, eod=spec.eod, end=_END)


def _read_ranks(path: Path, expected_hash: str | None = None) -> dict[bytes, int]:
    """Read lines of a token in base64 and its rank; tiktoken's own loader answers from a cache by
    path, though the file may differ."""
    content = path.read_bytes()
    if expected_hash is not None and hashlib.sha256(content).hexdigest() != expected_hash:
        raise ConfigError(
            f"{path}: is not OpenAI's file of that name (sha256 differs); give --tiktoken-pattern"
            " if it is one of your own"
        )
    try:
        return {
            base64.b64decode(token): int(rank)
            for token, rank in (line.split() for line in content.splitlines() if line)
        }
    except ValueError as error:
        raise ConfigError(f"{path}: no .tiktoken file ({error})") from None


def _megatron(spec: EncoderSpec, path: Path) -> TiktokenEncoder:
    """Open the vocabulary of Megatron's TikTokenizer: special tokens first, then the ranks, as many
    as the vocabulary has room for."""
    import tiktoken

    pattern = MEGATRON_PATTERNS.get(spec.tiktoken_pattern or "v2")
    if pattern is None:
        raise ConfigError(
            f"--tiktoken-pattern {spec.tiktoken_pattern!r}: expected v1 or v2 for Megatron's"
            " TikTokenizer"
        )
    first, size = spec.tiktoken_num_special, spec.vocab_size or MEGATRON_VOCAB_SIZE
    if not len(MEGATRON_SPECIALS) <= first < size:
        raise ConfigError(
            f"--tiktoken-num-special-tokens {first}: expected {len(MEGATRON_SPECIALS)} to"
            f" {size - 1}"
        )
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        tokens = [base64.b64decode(row["token_bytes"]) for row in rows]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"{path}: no vocabulary of Megatron's TikTokenizer: a list of objects with rank and"
            " token_bytes"
        ) from None
    ranks = {token: first + rank for rank, token in enumerate(tokens[: size - first])}
    names = [
        *MEGATRON_SPECIALS,
        *(f"<SPECIAL_{number}>" for number in range(len(MEGATRON_SPECIALS), first)),
    ]
    specials = {name: number for number, name in enumerate(names)}
    encoding = tiktoken.Encoding(
        name=path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials
    )
    return TiktokenEncoder(encoding, eod=spec.eod, end="</s>")
