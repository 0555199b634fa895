"""Arguments that the steps share, and how a step's end is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.cli.options import Given, option
from meshwright.cli.terminal import print_json, tell
from meshwright.data.atomic import write_whole
from meshwright.data.encoders import EncoderSpec, Kind
from meshwright.data.steps import StepResult
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "TOKENIZER_TYPE",
    "ConsumeFlag",
    "InputsArgument",
    "OutputFileFlag",
    "OutputFlag",
    "WorkersFlag",
    "show",
    "tokenizer_spec",
    "write_json",
]


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


def show(result: StepResult, *, json_output: bool) -> None:
    """Print a step's end, and leave with its exit code."""
    if json_output:
        print_json(result.to_dict())
    else:
        for line in result.lines():
            print(line)
    if result.report.stopped is not None:
        tell(f"error: {result.report.step} stopped: {result.report.stopped}")
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def write_json(path: Path, record: object) -> None:
    """Write an answer to a file as well, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(record, indent=2) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"--output {path}: {error.strerror}") from None


TOKENIZER_TYPE: Any = option(None, "Megatron's name of it [default: by the file].")
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


def tokenizer_spec(given: Given, *, kind: str | None, special_tokens: bool = True) -> EncoderSpec:
    """Return the tokenizer that the flags name; ConfigError where they name none, or two."""
    tokenizer, vocab_file = given.get("model"), given.get("vocab_file")
    merge_file = given.get("merge_file")
    if tokenizer is None and vocab_file is None:
        raise ConfigError(
            "which tokenizer? give --tokenizer FILE, or --vocab-file and --merge-file for GPT-2's"
        )
    if tokenizer is not None and vocab_file is not None:
        raise ConfigError(
            f"--tokenizer {tokenizer} and --vocab-file {vocab_file}: give one of them"
        )
    found = _kind(kind, tokenizer, merge_file)
    if merge_file is not None and found != "gpt2":
        raise ConfigError(f"--merge-file {merge_file}: has no meaning for this tokenizer")
    return EncoderSpec(kind=found, special_tokens=special_tokens, **given)


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
