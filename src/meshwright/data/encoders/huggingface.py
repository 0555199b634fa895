"""Tokenizers of the library `tokenizers`: a tokenizer.json, GPT-2's vocabulary and merges, BERT's
word pieces."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.data.encoders.encoder import Encoded, EncoderSpec, eod_of, flattened
from meshwright.errors import ConfigError, MissingExtraError

__all__ = ["HuggingFaceEncoder", "open_huggingface"]

_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
"""End of a document where nothing says it: GPT-2, SentencePiece models, Llama 3, Gemma, BERT."""


class HuggingFaceEncoder:
    """A tokenizer of `tokenizers`."""

    def __init__(
        self, tokenizer: Any, *, eod: str | None, special_tokens: bool, named_end: str | None = None
    ) -> None:
        """Wrap a `tokenizers.Tokenizer`; it is told to cut and to pad nothing, whatever its file
        says."""
        import tokenizers

        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer, self.name = tokenizer, f"tokenizers {tokenizers.__version__}"
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        highest = max(vocabulary.values(), default=-1) + 1
        self.vocab_size = max(self.vocab_size, highest)
        names = (named_end,) if named_end is not None else _ENDS
        self.eod = eod_of(eod, vocabulary, names, vocab_size=self.vocab_size)
        self.around = _around(tokenizer) if special_tokens else ((), ())

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of texts."""
        return flattened(
            [
                encoding.ids
                for encoding in self.tokenizer.encode_batch_fast(
                    list(texts), add_special_tokens=False
                )
            ]
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def specials(self) -> Sequence[str]:
        """Return the texts of the added tokens."""
        return [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]

    def to_json(self) -> str:
        """Return the tokenizer as a tokenizer.json."""
        return str(self.tokenizer.to_str())


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the post-processor puts before and behind a text."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    raise ConfigError(
        "the tokenizer's post-processor changes the ids of the text itself; give"
        " --no-special-tokens to leave it out"
    )


def open_huggingface(spec: EncoderSpec) -> HuggingFaceEncoder:
    """Open the tokenizer of a spec; ConfigError where a file is absent or no tokenizer."""
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # a worker is one process; its threads would take the others' cores
    )
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        raise MissingExtraError("tokenizers", "data") from None
    if spec.kind == "gpt2":
        return _gpt2(spec)
    if spec.kind in ("bert-cased", "bert-lower"):
        return _bert(spec)
    return _from_json(spec)


def _from_json(spec: EncoderSpec) -> HuggingFaceEncoder:
    from tokenizers import Tokenizer

    if spec.model is None:
        raise ConfigError(
            "a Hugging Face tokenizer needs --tokenizer with a tokenizer.json or its folder"
        )
    path = Path(spec.model)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; give a tokenizer.json or its folder (names of the Hub are not"
            " fetched here)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"{path}: no tokenizer.json that `tokenizers` reads ({error})") from None
    return HuggingFaceEncoder(
        tokenizer,
        eod=spec.eod,
        special_tokens=spec.special_tokens,
        named_end=_named_end(path.parent),
    )


def _named_end(folder: Path) -> str | None:
    """Return the end-of-sequence token that the tokenizer_config.json beside names: what Megatron
    and NeMo end documents with."""
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    token = config.get("eos_token") or config.get("sep_token") if isinstance(config, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _gpt2(spec: EncoderSpec) -> HuggingFaceEncoder:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab, merges = _file(spec.vocab_file, "--vocab-file"), _file(spec.merge_file, "--merge-file")
    try:
        tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(
            f"{vocab}, {merges}: no vocabulary and merges of a byte-pair encoding ({error})"
        ) from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return HuggingFaceEncoder(tokenizer, eod=spec.eod, special_tokens=False)


def _bert(spec: EncoderSpec) -> HuggingFaceEncoder:
    """Word pieces without [CLS] and [SEP]: Megatron's BERT data set puts these in itself."""
    from tokenizers import BertWordPieceTokenizer

    vocab = _file(spec.vocab_file, "--vocab-file")
    try:
        wrapped = BertWordPieceTokenizer(vocab, lowercase=spec.kind == "bert-lower")
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"{vocab}: no vocabulary of word pieces ({error})") from None
    return HuggingFaceEncoder(
        wrapped._tokenizer, eod=spec.eod, special_tokens=False, named_end="[SEP]"
    )


def _file(path: str | None, flag: str) -> str:
    if path is None:
        raise ConfigError(f"this tokenizer needs {flag}")
    if not Path(path).is_file():
        raise ConfigError(f"{flag} {path}: no such file")
    return path
