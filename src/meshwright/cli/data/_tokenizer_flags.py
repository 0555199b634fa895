"""The tokenizer of a command line, in Megatron's words and in ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from meshwright.data.encoders.encoder import EncoderSpec, Kind

__all__ = ["tokenizer_spec"]

_TYPES: dict[str, Kind] = {
    "GPT2BPETokenizer": "gpt2",
    "BertWordPieceCase": "bert-cased",
    "BertWordPieceLowerCase": "bert-lower",
    "SentencePieceTokenizer": "sentencepiece",
    "GPTSentencePieceTokenizer": "sentencepiece",
    "Llama2Tokenizer": "sentencepiece",
    "HuggingFaceTokenizer": "huggingface",
    "TikTokenizer": "tiktoken",
}
"""Megatron's --tokenizer-type (training_config.py) by what reads its files."""


def tokenizer_spec(
    *,
    tokenizer_type: str | None,
    tokenizer: str | None,
    vocab_file: str | None,
    merge_file: str | None,
    eod: str | None = None,
    special_tokens: bool = True,
    tiktoken_pattern: str | None = None,
    tiktoken_num_special_tokens: int = 1000,
    vocab_size: int | None = None,
) -> EncoderSpec:
    """Return the tokenizer that the flags name; ConfigError where they name none, or two."""
    from meshwright.data.encoders.encoder import EncoderSpec

    if tokenizer is None and vocab_file is None:
        raise ConfigError(
            "which tokenizer? give --tokenizer FILE, or --vocab-file and --merge-file for GPT-2's"
        )
    if tokenizer is not None and vocab_file is not None:
        raise ConfigError(
            f"--tokenizer {tokenizer} and --vocab-file {vocab_file}: give one of them"
        )
    kind = _kind(tokenizer_type, tokenizer, merge_file)
    if merge_file is not None and kind != "gpt2":
        raise ConfigError(f"--merge-file {merge_file}: has no meaning for this tokenizer")
    return EncoderSpec(
        kind=kind,
        model=tokenizer,
        vocab_file=vocab_file,
        merge_file=merge_file,
        eod=eod,
        special_tokens=special_tokens,
        tiktoken_pattern=tiktoken_pattern,
        tiktoken_num_special=tiktoken_num_special_tokens,
        vocab_size=vocab_size,
    )


def _kind(tokenizer_type: str | None, tokenizer: str | None, merge_file: str | None) -> Kind:
    if tokenizer_type is not None:
        if tokenizer_type not in _TYPES:
            raise UnknownNameError("tokenizer type", tokenizer_type, _TYPES)
        return _TYPES[tokenizer_type]
    if tokenizer is None:
        if merge_file is None:
            raise ConfigError(
                "--vocab-file alone: give --merge-file with it (GPT-2), or --tokenizer-type"
                " BertWordPieceLowerCase or ...Case"
            )
        return "gpt2"
    suffix = Path(tokenizer).suffix
    if suffix == ".model":
        return "sentencepiece"
    return "huggingface" if suffix == ".json" or Path(tokenizer).is_dir() else "tiktoken"
