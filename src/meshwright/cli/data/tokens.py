"""Steps from texts to tokens: `meshwright data train-tokenizer` and `tokenize`."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import typer

from meshwright import data
from meshwright.cli.data.flags import TOKENIZER_TYPE, InputsArgument, tokenizer_spec
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, QuietFlag, print_json, tell
from meshwright.data.encoders import EncoderSpec
from meshwright.data.tokenize_request import (
    ModelType,
    TokenizeReport,
    TokenizeRequest,
    train_sentencepiece,
)
from meshwright.data.workers import (
    find_place,
    format_size,
)
from meshwright.values.errors import ConfigError
from meshwright.values.options import word_of
from meshwright.values.units import counted, format_count

__all__ = ["tokenize", "train_tokenizer"]


@command
def train_tokenizer(
    inputs: InputsArgument,
    output_prefix: str = option(
        REQUIRED, "Of the model.", "--output-prefix", "-o", metavar="PREFIX"
    ),
    vocab_size: int = option(32_000, "Pieces, special ones among them."),
    model_type: str = option("bpe", "bpe, unigram, char or word.", metavar="TYPE"),
    no_byte_fallback: bool = option(False, "Characters without a piece become <unk>."),
    character_coverage: float = option(0.9995, "Share of the characters that get a piece."),
    sentences: int = option(1_000_000, "Lines to train on, drawn from all."),
    json_key: str = option("text", "Of the text in each object.", metavar="KEY"),
    form: Given = fields_of(TokenizeRequest, "form"),
    json_output: JsonFlag = False,
) -> None:
    """Train a SentencePiece model on the lines of a corpus, for `tokenize --tokenizer
    PREFIX.model`.

    Byte fallback (the default) writes a character without a piece as its bytes, so that no text is
    lost. What is no document is passed over and counted; `tokenize` names it. One process does it;
    other ranks have nothing to do.

    Prints the model and its pieces.

    Examples:

      meshwright data train-tokenizer corpus/ -o tokenizers/mine

      meshwright data train-tokenizer 'shards/*.jsonl.zst' -o tokenizers/mine --vocab-size 64000 --sentences 5000000

      meshwright data train-tokenizer wiki.txt -o tokenizers/t5 --model-type unigram --no-byte-fallback --json
    """  # noqa: E501
    place = find_place(os.environ)
    if place.rank:
        tell(f"rank {place.rank}: rank 0 trains")
        return
    trained = train_sentencepiece(
        inputs,
        output_prefix=output_prefix,
        vocab_size=vocab_size,
        model_type=word_of(ModelType, "--model-type")(model_type),
        byte_fallback=not no_byte_fallback,
        character_coverage=character_coverage,
        sentences=sentences,
        key=json_key,
        **form,
    )
    if json_output:
        print_json(asdict(trained))
    else:
        left = f", {trained.rejects:,} passed over" if trained.rejects else ""
        print(
            f"{trained.model}: {trained.vocab_size:,} pieces, from"
            f" {counted(trained.documents, 'document')}{left}"
        )


@command
def tokenize(
    inputs: list[str] | None = argument(
        None, "Files, folders, quoted patterns, @FILE lists.", metavar="[INPUTS]..."
    ),
    input_words: list[str] | None = option(
        None, "The same, as Megatron names it.", "--input", metavar="PATH"
    ),
    output: Given = fields_of(TokenizeRequest, "output_prefix"),
    tokenizer: Given = fields_of(EncoderSpec, "model"),
    tokenizer_type: str | None = TOKENIZER_TYPE,
    files: Given = fields_of(EncoderSpec, "vocab_file", "merge_file"),
    ends: Given = fields_of(TokenizeRequest, "append_eod"),
    eod: Given = fields_of(EncoderSpec, "eod"),
    texts: Given = fields_of(
        TokenizeRequest,
        *("keys", "split_sentences", "keep_newlines", "language", "form", "text_unit"),
        *("on_error", "max_document_bytes"),
    ),
    workers: int | None = option(
        None, "Processes [default: one per core; one where there are several ranks]."
    ),
    engine: Given = fields_of(TokenizeRequest, "engine"),
    overwrite: bool = option(
        False, "Remove what an earlier run with this prefix made, and begin anew."
    ),
    no_special_tokens: bool = option(
        False,
        "Leave out what a tokenizer.json puts around each text (such as <|begin_of_text|>).",
        "--no-special-tokens",
        "--tokenizer-hf-no-include-special-tokens",
    ),
    tiktoken: Given = fields_of(
        EncoderSpec, "vocab_size", "tiktoken_pattern", "tiktoken_num_special"
    ),
    dataset_impl: str = option("mmap", "mmap is the only one."),
    chunk_size: int | None = option(None, "Megatron's; has no effect here."),
    log_interval: int | None = option(None, "Megatron's; has no effect here."),
    partitions: int | None = option(None, "Megatron's; has no effect here."),
    keep_sequential_samples: bool = option(
        False, "Megatron's; here documents are always in their order."
    ),
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Tokenize JSON lines, JSON, text or Parquet, also compressed, to Megatron's .bin/.idx.

    The list of inputs is frozen at the first start and cut into segments of equal bytes, which
    ranks (RANK and WORLD_SIZE, Slurm, Kubernetes, Base Command) and workers share. After a kill the
    same command goes on where it was; the bytes of the output are the same for any number of ranks
    and workers. The rank that ends last joins the segments. gigatoken does the work where a sample
    shows that its ids are those of the tokenizer's own library, and is held against it all along;
    otherwise the library does.

    What is no document (bad JSON, a missing key, bad UTF-8, an empty text, an empty file, an
    archive that ends too early) ends the run with file, line and reason and exit code 3 (fail), is
    left out and counted (skip), or is put into PREFIX.rejected.jsonl as well (quarantine). A second
    start with another policy keeps what is done. A file that is left out whole makes the exit code
    3.

    Flags of Megatron's preprocess_data.py are taken as they are; its --json-keys may be followed by
    several words.

    Examples:

      meshwright data tokenize corpus/ -o data/my-gpt --vocab-file encoder.json --merge-file vocab.bpe --append-eod

      meshwright data tokenize 'shards/*.jsonl.zst' -o data/llama --tokenizer tokenizer.json --append-eod --on-error quarantine

      meshwright data tokenize --input wiki.json --output-prefix my-bert --vocab-file vocab.txt --tokenizer-type BertWordPieceLowerCase
      --split-sentences --dataset-impl mmap --workers 8
    """  # noqa: E501
    _check_megatron(
        dataset_impl,
        {"chunk-size": chunk_size, "log-interval": log_interval, "partitions": partitions},
        keep_sequential_samples=keep_sequential_samples,
    )
    words, keys = _words(inputs or [], input_words or [], texts.pop("keys", []))
    spec = tokenizer_spec(
        {**tokenizer, **files, **eod, **tiktoken},
        kind=tokenizer_type,
        special_tokens=not no_special_tokens,
    )
    request = TokenizeRequest(
        inputs=words, tokenizer=spec, keys=keys, **output, **ends, **texts, **engine
    )
    place = find_place(os.environ)
    if workers is None:
        workers = 1 if place.world_size > 1 else len(os.sched_getaffinity(0))
    report = data.tokenize(
        request, workers=workers, place=place, overwrite=overwrite, progress=not quiet
    )
    if json_output:
        _print_json(report)
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _check_megatron(
    dataset_impl: str, counts: dict[str, int | None], *, keep_sequential_samples: bool
) -> None:
    """Say which of Megatron's flags have no effect; ConfigError for data that none reads."""
    if dataset_impl != "mmap":
        raise ConfigError(
            f"--dataset-impl {dataset_impl}: expected mmap, the one that Megatron-Core reads"
        )
    for flag, value in counts.items():
        if value is not None:
            tell(
                f"note: --{flag} {value} has no effect here: work is shared by bytes, not by"
                " documents"
            )
    if keep_sequential_samples:
        tell(
            "note: --keep-sequential-samples has no effect here: documents are always in their"
            " order"
        )


def _words(
    inputs: list[str], input_words: list[str], json_keys: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tell inputs from keys: with --input, loose words follow --json-keys, as for Megatron."""
    if input_words and json_keys:
        return tuple(input_words), (*json_keys, *inputs)
    return (*input_words, *inputs), tuple(json_keys) or ("text",)


def _print_json(report: TokenizeReport) -> None:
    content: dict[str, Any] = {
        "complete": report.manifest is not None,
        "documents": report.documents,
        "tokens": report.tokens,
        "engine": report.note,
        "seconds": report.seconds,
        "rejected": report.rejects,
        "files_left_out": report.files_out,
        "failed": [asdict(failed) for failed in report.failed],
        "problems": report.problems,
        "open_segments": report.open_segments,
        "manifest": report.manifest.to_dict() if report.manifest is not None else None,
    }
    print_json(content)


def _print(report: TokenizeReport) -> None:
    print(report.note)
    for file in report.manifest.files if report.manifest is not None else ():
        held = (
            f", {counted(file.documents, 'document')}, {format_count(file.tokens or 0)}"
            f" token{'' if file.tokens == 1 else 's'}"
            if file.documents is not None
            else ""
        )
        print(f"{file.name}: {format_size(file.size_bytes)}{held}")
    if report.rejects:
        print(
            f"left out: {report.rejects:,}, by the policy;"
            f" {counted(len(report.files_out), 'whole file')} among it"
        )
    for name in report.files_out[:10]:
        tell(f"left out whole: {name}")
    for failed in report.failed[:20]:
        tell(f"no document: {failed}")
    if len(report.failed) > 20:
        tell(f"and {len(report.failed) - 20} more; all of them in --json")
    if report.failed:
        tell(
            "mend them and give --overwrite, or start again with --on-error skip or quarantine,"
            " which keeps what is done"
        )
    for problem in report.problems:
        tell(f"problem: {problem}")
    if report.manifest is None and not report.failed and not report.problems:
        print(
            f"this rank's share is done; {counted(report.open_segments, 'segment')} left to other"
            " ranks, of which the last to end joins all"
        )
