"""Steps on .bin/.idx pairs and on the disk that they take: `meshwright data merge`, `check`,
`verify`, `stats`, `blend` and `plan`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

import typer

from meshwright import data
from meshwright.cli.data.flags import TOKENIZER_TYPE, OutputFileFlag, tokenizer_spec, write_json
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, print_json, tell
from meshwright.data.atomic import parse_size
from meshwright.data.encoders import EncoderSpec
from meshwright.data.engines import open_reference
from meshwright.data.footprint import BYTES_PER_TOKEN
from meshwright.data.pairs import FORMS, Blend, By, LengthStats
from meshwright.data.workers import (
    find_place,
    format_size,
)
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import counted, format_count, parse_count

__all__ = ["blend", "check", "merge", "plan", "stats", "verify"]


@command
def merge(
    inputs: list[str] | None = argument(
        None, "Prefixes, folders, quoted patterns, @FILE lists.", metavar="[PAIRS]..."
    ),
    input_words: list[str] | None = option(
        None, "The same, as Megatron names it.", "--input", metavar="FOLDER"
    ),
    output_prefix: str = option(
        "", "Of the merged pair.", "--output-prefix", "-o", metavar="PREFIX"
    ),
    overwrite: bool = option(False, "Replace a pair that exists."),
    json_output: JsonFlag = False,
) -> None:
    """Merge pairs of .bin and .idx in the order given; folders and patterns in natural order.

    The ids are copied one pair after the other and the indices shifted, as Megatron's
    merge_datasets.py does, but after a kill it goes on behind the last pair that was whole. A pair
    that these pairs made already stays as it is. Pairs with other types of ids are refused. One
    process does it; other ranks have nothing to do.

    Prints documents and tokens; PREFIX.manifest.json has sizes and sha256.

    Examples:

      meshwright data merge data/en_text_document data/de_text_document -o data/both

      meshwright data merge shards/ -o data/all

      meshwright data merge --input shards --output-prefix data/all --overwrite --json
    """
    place = find_place(os.environ)
    if place.rank:
        tell(f"rank {place.rank}: rank 0 merges")
        return
    words = [*(input_words or []), *(inputs or [])]
    if not words:
        raise ConfigError("no pair: give prefixes, or a folder")
    report = data.merge(words, output_prefix=output_prefix, overwrite=overwrite)
    if json_output:
        print_json({**asdict(report), "manifest": report.manifest.to_dict()})
    else:
        of = (
            (len(report.sources), "pair"),
            (report.documents, "document"),
            (report.tokens, "token"),
        )
        there = ", there already" if report.was_there else ""
        print(f"{report.prefix}: {', '.join(counted(number, noun) for number, noun in of)}{there}")


@command
def check(
    inputs: list[str] = argument(
        REQUIRED, "With a manifest.json, or manifests.", metavar="FOLDER..."
    ),
    corpus: str | None = option(
        None, "All files of this corpus must be named: slimpajama.", metavar="NAME"
    ),
    chunks: int | None = option(None, "Of the corpus: its first chunks.", metavar="N"),
    workers: int = option(4, "Threads that read.", "--workers", "-j", metavar="N"),
    json_output: JsonFlag = False,
) -> None:
    """Read back every file that a step made: it is there, with the size and the sha256 of the
    manifest.

    Pairs of .bin and .idx have a check of their own, `verify`, which also looks into them.

    Prints files, bytes and what is wrong. Exit code 1 where anything is.

    Examples:

      meshwright data check raw

      meshwright data check raw --corpus slimpajama --workers 32

      meshwright data check tokens/my-gpt.manifest.json --json
    """
    report = data.check(inputs, corpus=corpus, chunks=chunks, workers=workers)
    if json_output:
        print_json(asdict(report))
    else:
        for fault in report.faults:
            print(fault)
        well = "all are well" if not report.faults else f"{len(report.faults):,} faults"
        print(f"{counted(report.files, 'file')}, {format_size(report.size_bytes)}: {well}")
    if report.faults:
        raise typer.Exit(1)


@command
def verify(
    inputs: list[str] = argument(
        REQUIRED, "Prefixes, folders, quoted patterns.", metavar="PAIRS..."
    ),
    vocab_size: int | None = option(
        None, "Ids must be below it [default: of tokenizer or manifest]."
    ),
    tokenizer: Given = fields_of(EncoderSpec, "model", model="To decode samples with."),
    tokenizer_type: str | None = TOKENIZER_TYPE,
    files: Given = fields_of(EncoderSpec, "vocab_file", "merge_file"),
    samples: int = option(3, "Documents of each pair that are decoded."),
    json_output: JsonFlag = False,
) -> None:
    """Verify pairs of .bin and .idx, byte by byte.

    Looks at magic, version, type, counts and sizes; that every length is positive, every pointer
    the sum of the lengths before it, and the bounds of the documents rise from 0 to the last
    sequence; that the .bin file has exactly the tokens that the index names, all within the
    vocabulary; and that documents, tokens, hashes and ends of documents are what the manifest
    beside the pair says.

    Prints each check, and with a tokenizer the beginnings of some documents. Exit code 1 where a
    check fails.

    Examples:

      meshwright data verify data/my-gpt_text_document

      meshwright data verify data/ --vocab-size 50257

      meshwright data verify data/my-gpt_text_document --vocab-file encoder.json --merge-file vocab.bpe --samples 5
    """  # noqa: E501
    encoder = None
    if "model" in tokenizer or "vocab_file" in files:
        encoder = open_reference(tokenizer_spec({**tokenizer, **files}, kind=tokenizer_type))
    found = data.verify(inputs, vocab_size=vocab_size, encoder=encoder, samples=samples)
    if json_output:
        print_json([{**asdict(pair), "passed": pair.passed} for pair in found])
    else:
        for pair in found:
            print(f"{pair.prefix}: {'all is well' if pair.passed else 'BROKEN'}")
            for check in pair.checks:
                print(f"  {'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.found}")
            for document, text in pair.samples:
                print(f"  document {document}: {text!r}")
    if not all(pair.passed for pair in found):
        raise typer.Exit(1)


_BAR = 40


@command
def stats(
    inputs: list[str] = argument(
        REQUIRED, "Prefixes, folders, quoted patterns.", metavar="PAIRS..."
    ),
    output: OutputFileFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Count documents and tokens, with quantiles and a histogram of the documents' lengths.

    The index alone is read. A quantile is exact: the smallest length that at least this share of
    the documents does not exceed.

    Prints one block for each pair, and with several one for all of them together; the bars are
    shares of the tokens.

    Examples:

      meshwright data stats data/my-gpt_text_document

      meshwright data stats data/

      meshwright data stats 'data/*_text_document.idx' --json
    """
    found = data.stats(inputs)
    record = [{**asdict(entry), "mean": entry.mean} for entry in found]
    if output is not None:
        write_json(output, record)
    if json_output:
        print_json(record)
        return
    for entry in found:
        _print(entry)


def _print(entry: LengthStats) -> None:
    print(
        f"{entry.prefix}: {counted(entry.documents, 'document')},"
        f" {counted(entry.sequences, 'sequence')}, {counted(entry.tokens, 'token')},"
        f" {format_size(entry.size_bytes)}, {entry.mean:,.1f} tokens a document"
    )
    print("  " + ", ".join(f"{share:.0%} {length:,}" for share, length in entry.quantiles.items()))
    for start, below, documents, tokens in entry.histogram:
        share = tokens / entry.tokens if entry.tokens else 0.0
        print(
            f"  {f'{start:,} to {below - 1:,}':>21} tokens {documents:>13,} documents {share:>6.1%}"
            f" {'#' * round(share * _BAR)}".rstrip()
        )


@command
def blend(
    inputs: list[str] = argument(
        REQUIRED, "Prefixes, folders, quoted patterns.", metavar="PAIRS..."
    ),
    by: str = option("tokens", "What weights follow: tokens, documents or equal.", metavar="WHAT"),
    temperature: float = option(
        1.0, "Sizes to the power 1/T: above 1, small corpora weigh more.", metavar="T"
    ),
    weights: str | None = option(None, "A mixture of your own.", metavar="W,W,... | PREFIX=W,..."),
    train_tokens: str | None = option(
        None, "Say how often each corpus is read, such as 300B.", metavar="TOKENS"
    ),
    form: str | None = option(
        None, "Only its line: megatron, nemo or bridge.", "--to", metavar="PROGRAM"
    ),
    output: OutputFileFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Weigh corpora by their tokens or by a mixture of your own; the weights sum to 1 as they are
    printed.

    A weight is the share of the training's samples that come from a corpus. Rounding to six digits
    gives what is left to those that lost the most by it.

    Prints each corpus with its weight, and the words of Megatron-LM (--data-path), NeMo 1.x
    (data_prefix) and Megatron-Bridge (blend).

    Examples:

      meshwright data blend data/en_text_document data/de_text_document

      meshwright data blend data/ --weights 0.7,0.2,0.1 --train-tokens 300B

      meshwright data blend data/ --temperature 2 --to nemo
    """
    if by not in get_args(By):
        raise UnknownNameError("value of --by", by, get_args(By))
    if form is not None and form not in FORMS:
        raise UnknownNameError("value of --to", form, FORMS)
    train = None if train_tokens is None else parse_count(train_tokens, name="--train-tokens")
    if train == 0:
        raise ConfigError(f"--train-tokens {train_tokens}: expected 1 or more")
    mixture = data.blend(
        inputs,
        by=by,  # type: ignore[arg-type]
        temperature=temperature,
        weights=None if weights is None else _weights(weights),
    )
    epochs = [None] * len(mixture.tokens) if train is None else mixture.epochs(train)
    columns = (mixture.prefixes, mixture.weights, mixture.tokens, epochs)
    names = ("prefix", "weight", "tokens", "epochs")
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    record = {"blend": rows, "forms": mixture.forms()}
    if output is not None:
        write_json(output, record)
    if json_output:
        print_json(record)
    elif form is not None:
        print(mixture.forms()[form])
    else:
        _print_blend(mixture, epochs)


def _print_blend(mixture: Blend, epochs: Sequence[float | None]) -> None:
    columns = (mixture.words(), mixture.prefixes, mixture.tokens, epochs)
    for word, prefix, tokens, read in zip(*columns, strict=True):
        times = "" if read is None else f", read {read:.2f} times"
        print(f"{word}  {prefix}: {format_count(tokens)} tokens{times}")
    print()
    for name, text in mixture.forms().items():
        print(f"{name}: {text}")


def _weights(text: str) -> list[float] | dict[str, float]:
    """Read `0.7,0.3` or `a=0.7,b=0.3`; ConfigError for anything else."""
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        if all(equals for _, equals, _ in parts):
            return {name: float(number) for name, _, number in parts}
        if not any(equals for _, equals, _ in parts):
            return [float(number) for _, _, number in parts]
    except ValueError:
        pass
    raise ConfigError(
        f"--weights {text}: expected numbers (0.7,0.3), or a prefix with each"
        " (data/en=0.7,data/de=0.3)"
    )


@command
def plan(
    inputs: list[str] | None = argument(None, "Files that are there.", metavar="[INPUT...]"),
    corpus: str | None = option(None, "A corpus known by name: slimpajama.", metavar="NAME"),
    chunks: int | None = option(None, "Its first N chunks [default: all].", metavar="N"),
    strategy: str | None = option(
        None, "chunks, direct, text or recipe [default: any that runs].", metavar="NAME"
    ),
    quota: str | None = option(None, "Disk that there is: 2TB, 1.5TiB.", metavar="SIZE"),
    vocab_size: int = option(
        50_257, "Of the tokenizer: 65,500 and more take 4 bytes a token.", metavar="N"
    ),
    bytes_per_token: float | None = option(
        None, "Of plain INPUT [default: 3.99, GPT-2, English].", metavar="X"
    ),
    json_output: JsonFlag = False,
) -> None:
    """Say what a corpus takes on disk at each stage, and which strategy fits a quota.

    A step's inputs and outputs are on the disk together unless it consumes as it goes, so the order
    of steps decides the peak, not the result: the usual recipe for SlimPajama takes 5.08 TB for
    1.28 TB of tokens.

    Prints files and bytes by stage, and the peak of each strategy. Exit code 1 where the quota is
    too small, with what would fit.

    Examples:

      meshwright data plan --corpus slimpajama

      meshwright data plan --corpus slimpajama --quota 1TB

      meshwright data plan raw --vocab-size 128256 --json
    """
    found = data.plan(
        inputs or (),
        corpus=corpus,
        chunks=chunks,
        strategy=strategy,
        quota_bytes=None if quota is None else parse_size(quota, name="--quota"),
        vocab_size=vocab_size,
        bytes_per_token=BYTES_PER_TOKEN if bytes_per_token is None else bytes_per_token,
    )
    if json_output:
        print_json(found.to_dict())
    else:
        for line in found.lines():
            print(line)
    if found.exit_code:
        raise typer.Exit(found.exit_code)
