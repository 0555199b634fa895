"""Steps from texts to tokens: `meshwright data train-tokenizer` and `tokenize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from meshwright.cli.data.flags import InputsArgument, JsonFlag
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.cli.terminal import QuietFlag
from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright.data.tokenize_request import TokenizeReport

__all__ = [
    "tokenize",
    "train_tokenizer",
]


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
    form: str | None = option(
        None, "json, text or parquet [default: by the names].", "--format", metavar="FORM"
    ),
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
    import json
    import os
    from dataclasses import asdict

    from meshwright.cli.data.flags import choice
    from meshwright.data.pieces import Form
    from meshwright.data.tokenize_request import (
        ModelType,
        train_sentencepiece,
    )
    from meshwright.data.workers import (
        find_place,
    )

    place = find_place(os.environ)
    if place.rank:
        typer.echo(f"rank {place.rank}: rank 0 trains", err=True)
        return
    trained = train_sentencepiece(
        inputs,
        output_prefix=output_prefix,
        vocab_size=vocab_size,
        model_type=choice(model_type, ModelType, "--model-type"),
        byte_fallback=not no_byte_fallback,
        character_coverage=character_coverage,
        sentences=sentences,
        key=json_key,
        form=choice(form, Form, "--format"),
    )
    if json_output:
        print(json.dumps(asdict(trained), indent=2))
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
    output_prefix: str = option(
        "", "Files are PREFIX_KEY_document.bin.", "--output-prefix", "-o", metavar="PREFIX"
    ),
    tokenizer: str | None = option(
        None,
        "tokenizer.json, SentencePiece .model, .tiktoken.",
        "--tokenizer",
        "--tokenizer-model",
        metavar="FILE",
    ),
    tokenizer_type: str | None = option(None, "Megatron's name of it [default: by the file]."),
    vocab_file: str | None = option(None, "Of GPT-2 or BERT.", metavar="FILE"),
    merge_file: str | None = option(None, "Of GPT-2.", metavar="FILE"),
    append_eod: bool = option(False, "End each document with the tokenizer's token for that."),
    eod: str | None = option(
        None, "That token, or its id [default: the tokenizer's own].", metavar="TOKEN"
    ),
    json_keys: list[str] | None = option(
        None, "Of the text in each object [default: text].", metavar="KEY"
    ),
    split_sentences: bool = option(False, "One sequence per sentence (BERT, T5), by NLTK."),
    keep_newlines: bool = option(False, "Sentences keep the white space behind them."),
    lang: str = option("english", "Language of the sentences."),
    form: str | None = option(
        None, "json, text or parquet [default: by the names].", "--format", metavar="FORM"
    ),
    text_unit: str = option(
        "file", "What is a document of a text: file, line or paragraph.", metavar="UNIT"
    ),
    on_error: str = option(
        "fail", "With what is no document: fail, skip or quarantine.", metavar="POLICY"
    ),
    max_document_mib: int = option(64, "A longer document is none: memory."),
    workers: int | None = option(
        None, "Processes [default: one per core; one where there are several ranks]."
    ),
    engine: str | None = option(
        None, "gigatoken or library [default: the faster that is exact].", metavar="NAME"
    ),
    overwrite: bool = option(
        False, "Remove what an earlier run with this prefix made, and begin anew."
    ),
    no_special_tokens: bool = option(
        False,
        "Leave out what a tokenizer.json puts around each text (such as <|begin_of_text|>).",
        "--no-special-tokens",
        "--tokenizer-hf-no-include-special-tokens",
    ),
    vocab_size: int | None = option(None, "Of TikTokenizer: cut the vocabulary to it."),
    tiktoken_pattern: str | None = option(None, "v1, v2 or a regular expression.", metavar="P"),
    tiktoken_num_special_tokens: int = option(1000, "Of TikTokenizer."),
    dataset_impl: str = option("mmap", "mmap is the only one."),
    chunk_size: int | None = option(None, "Megatron's; has no effect here."),
    log_interval: int | None = option(None, "Megatron's; has no effect here."),
    partitions: int | None = option(None, "Megatron's; has no effect here."),
    keep_sequential_samples: bool = option(
        False, "Megatron's; here documents are always in their order."
    ),
    quiet: QuietFlag = False,
    json_output: bool = option(False, "Print one JSON object for programs.", "--json"),
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
    import os

    from meshwright.cli.data.flags import choice, tokenizer_spec
    from meshwright.data.documents import TextUnit
    from meshwright.data.encoders import Engine
    from meshwright.data.pieces import Form
    from meshwright.data.segment_work import OnError
    from meshwright.data.tokenize_request import TokenizeRequest
    from meshwright.data.tokenizing import tokenize as run
    from meshwright.data.workers import find_place
    from meshwright.values.errors import ConfigError
    from meshwright.values.units import MIB

    if dataset_impl != "mmap":
        raise ConfigError(
            f"--dataset-impl {dataset_impl}: expected mmap, the one that Megatron-Core reads"
        )
    for flag, value in (
        ("--chunk-size", chunk_size),
        ("--log-interval", log_interval),
        ("--partitions", partitions),
    ):
        if value is not None:
            typer.echo(
                f"note: {flag} {value} has no effect here: work is shared by bytes, not by"
                " documents",
                err=True,
            )
    if keep_sequential_samples:
        typer.echo(
            "note: --keep-sequential-samples has no effect here: documents are always in their"
            " order",
            err=True,
        )
    words, keys = _words(inputs or [], input_words or [], json_keys or [])
    spec = tokenizer_spec(
        tokenizer_type=tokenizer_type,
        tokenizer=tokenizer,
        vocab_file=vocab_file,
        merge_file=merge_file,
        eod=eod,
        special_tokens=not no_special_tokens,
        tiktoken_pattern=tiktoken_pattern,
        tiktoken_num_special_tokens=tiktoken_num_special_tokens,
        vocab_size=vocab_size,
    )
    request = TokenizeRequest(
        inputs=words,
        output_prefix=output_prefix,
        tokenizer=spec,
        keys=keys,
        append_eod=append_eod,
        split_sentences=split_sentences,
        language=lang,
        keep_newlines=keep_newlines,
        form=choice(form, Form, "--format"),
        text_unit=choice(text_unit, TextUnit, "--text-unit") or "file",
        on_error=choice(on_error, OnError, "--on-error") or "fail",
        engine=choice(engine, Engine, "--engine"),
        max_document_bytes=max_document_mib * MIB,
    )
    place = find_place(os.environ)
    if workers is None:
        workers = 1 if place.world_size > 1 else len(os.sched_getaffinity(0))
    report = run(request, workers=workers, place=place, overwrite=overwrite, progress=not quiet)
    if json_output:
        _print_json(report)
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _words(
    inputs: list[str], input_words: list[str], json_keys: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tell inputs from keys: with --input, loose words are what follows --json-keys, as in
    Megatron's command lines."""
    if input_words and json_keys:
        return tuple(input_words), (*json_keys, *inputs)
    return (*input_words, *inputs), tuple(json_keys) or ("text",)


def _print_json(report: TokenizeReport) -> None:
    import json
    from dataclasses import asdict

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
    print(json.dumps(content, indent=2))


def _print(report: TokenizeReport) -> None:
    from meshwright.data.workers import format_size
    from meshwright.values.units import format_count

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
        typer.echo(f"left out whole: {name}", err=True)
    for failed in report.failed[:20]:
        typer.echo(f"no document: {failed}", err=True)
    if len(report.failed) > 20:
        typer.echo(f"and {len(report.failed) - 20} more; all of them in --json", err=True)
    if report.failed:
        typer.echo(
            "mend them and give --overwrite, or start again with --on-error skip or quarantine,"
            " which keeps what is done",
            err=True,
        )
    for problem in report.problems:
        typer.echo(f"problem: {problem}", err=True)
    if report.manifest is None and not report.failed and not report.problems:
        print(
            f"this rank's share is done; {counted(report.open_segments, 'segment')} left to other"
            " ranks, of which the last to end joins all"
        )
