"""`meshwright data train-tokenizer`: a SentencePiece model of one's own corpus."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli.data.flags import InputsArgument, JsonFlag
from meshwright.values.units import counted

__all__ = ["train_tokenizer"]


def train_tokenizer(
    inputs: InputsArgument,
    output_prefix: Annotated[
        str,
        typer.Option(
            "--output-prefix", "-o", metavar="PREFIX", help="Of the model.", show_default=False
        ),
    ],
    vocab_size: Annotated[int, typer.Option(help="Pieces, special ones among them.")] = 32_000,
    model_type: Annotated[
        str, typer.Option(metavar="TYPE", help="bpe, unigram, char or word.")
    ] = "bpe",
    no_byte_fallback: Annotated[
        bool, typer.Option("--no-byte-fallback", help="Characters without a piece become <unk>.")
    ] = False,
    character_coverage: Annotated[
        float, typer.Option(help="Share of the characters that get a piece.")
    ] = 0.9995,
    sentences: Annotated[int, typer.Option(help="Lines to train on, drawn from all.")] = 1_000_000,
    json_key: Annotated[
        str, typer.Option(metavar="KEY", help="Of the text in each object.")
    ] = "text",
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORM", help="json, text or parquet [default: by the names]."
        ),
    ] = None,
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
    from meshwright.data.tokenize_request import ModelType, train_sentencepiece
    from meshwright.data.workers import find_place

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
