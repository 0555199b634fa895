"""Arguments that the steps share, and how a step's end is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from meshwright.cli.terminal import print_json
from meshwright.data.atomic import write_whole
from meshwright.data.encoders import EncoderSpec, Kind
from meshwright.data.steps import StepResult
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "ConsumeFlag",
    "InputsArgument",
    "JsonFlag",
    "OutputFileFlag",
    "OutputFlag",
    "WorkersFlag",
    "choice",
    "show",
    "tokenizer_spec",
    "write_json",
]


def choice(word: str | None, choices: Any, flag: str) -> Any:
    """Return a word that is one of a Literal's; UnknownNameError where it is not."""
    if word is not None and word not in get_args(choices):
        raise UnknownNameError(f"value of {flag}", word, get_args(choices))
    return word


InputsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files, folders, quoted patterns, or @FILE with a path per line.",
        show_default=False,
    ),
]
OutputFlag = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FOLDER", help="Where the results go.", show_default=False
    ),
]
WorkersFlag = Annotated[
    int, typer.Option("--workers", "-j", metavar="N", help="Processes of this rank.")
]
ConsumeFlag = Annotated[
    bool,
    typer.Option(
        "--consume", help="Remove each input once what replaces it was read back and is the same."
    ),
]
OutputFileFlag = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the JSON object here too."),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]


def show(result: StepResult, *, json_output: bool) -> None:
    """Print a step's end, and leave with its exit code."""
    if json_output:
        print_json(result.to_dict())
    else:
        for line in result.lines():
            print(line)
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def write_json(path: Path, record: object) -> None:
    """Write an answer to a file as well, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(record, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"--output {path}: {error.strerror}") from None


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
