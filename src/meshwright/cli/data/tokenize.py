"""`meshwright data tokenize`: texts to Megatron's .bin/.idx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.terminal import QuietFlag
from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright.data.tokenize_request import TokenizeReport

__all__ = ["tokenize"]


def tokenize(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[INPUTS]...",
            help="Files, folders, quoted patterns, @FILE lists.",
            show_default=False,
        ),
    ] = None,
    input_words: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="PATH", help="The same, as Megatron names it."),
    ] = None,
    output_prefix: Annotated[
        str,
        typer.Option(
            "--output-prefix", "-o", metavar="PREFIX", help="Files are PREFIX_KEY_document.bin."
        ),
    ] = "",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            "--tokenizer-model",
            metavar="FILE",
            help="tokenizer.json, SentencePiece .model, .tiktoken.",
        ),
    ] = None,
    tokenizer_type: Annotated[
        str | None, typer.Option(help="Megatron's name of it [default: by the file].")
    ] = None,
    vocab_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of GPT-2 or BERT.")
    ] = None,
    merge_file: Annotated[str | None, typer.Option(metavar="FILE", help="Of GPT-2.")] = None,
    append_eod: Annotated[
        bool,
        typer.Option("--append-eod", help="End each document with the tokenizer's token for that."),
    ] = False,
    eod: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="That token, or its id [default: the tokenizer's own]."),
    ] = None,
    json_keys: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Of the text in each object [default: text]."),
    ] = None,
    split_sentences: Annotated[
        bool,
        typer.Option("--split-sentences", help="One sequence per sentence (BERT, T5), by NLTK."),
    ] = False,
    keep_newlines: Annotated[
        bool, typer.Option("--keep-newlines", help="Sentences keep the white space behind them.")
    ] = False,
    lang: Annotated[str, typer.Option(help="Language of the sentences.")] = "english",
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORM", help="json, text or parquet [default: by the names]."
        ),
    ] = None,
    text_unit: Annotated[
        str,
        typer.Option(metavar="UNIT", help="What is a document of a text: file, line or paragraph."),
    ] = "file",
    on_error: Annotated[
        str,
        typer.Option(metavar="POLICY", help="With what is no document: fail, skip or quarantine."),
    ] = "fail",
    max_document_mib: Annotated[int, typer.Option(help="A longer document is none: memory.")] = 64,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes [default: one per core; one where there are several ranks]."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="gigatoken or library [default: the faster that is exact]."
        ),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Remove what an earlier run with this prefix made, and begin anew."
        ),
    ] = False,
    no_special_tokens: Annotated[
        bool,
        typer.Option(
            "--no-special-tokens",
            "--tokenizer-hf-no-include-special-tokens",
            help=(
                "Leave out what a tokenizer.json puts around each text (such as <|begin_of_text|>)."
            ),
        ),
    ] = False,
    vocab_size: Annotated[
        int | None, typer.Option(help="Of TikTokenizer: cut the vocabulary to it.")
    ] = None,
    tiktoken_pattern: Annotated[
        str | None, typer.Option(metavar="P", help="v1, v2 or a regular expression.")
    ] = None,
    tiktoken_num_special_tokens: Annotated[int, typer.Option(help="Of TikTokenizer.")] = 1000,
    dataset_impl: Annotated[str, typer.Option(help="mmap is the only one.")] = "mmap",
    chunk_size: Annotated[int | None, typer.Option(help="Megatron's; has no effect here.")] = None,
    log_interval: Annotated[
        int | None, typer.Option(help="Megatron's; has no effect here.")
    ] = None,
    partitions: Annotated[int | None, typer.Option(help="Megatron's; has no effect here.")] = None,
    keep_sequential_samples: Annotated[
        bool,
        typer.Option(
            "--keep-sequential-samples",
            help="Megatron's; here documents are always in their order.",
        ),
    ] = False,
    quiet: QuietFlag = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for programs.")
    ] = False,
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
    from meshwright.data.progress import format_size
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
