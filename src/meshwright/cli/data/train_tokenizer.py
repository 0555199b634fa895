"""`meshwright data train-tokenizer`: a SentencePiece model of one's own corpus."""

from __future__ import annotations

import typer

from meshwright.cli.data.flags import InputsArgument, JsonFlag
from meshwright.cli.options import REQUIRED, command, option
from meshwright.values.units import counted

__all__ = ["train_tokenizer"]


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
    from meshwright.data.ranks import find_place
    from meshwright.data.training import ModelType, train_sentencepiece

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
