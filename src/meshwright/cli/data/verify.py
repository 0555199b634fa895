"""`meshwright data verify`: is a .bin/.idx pair what Megatron takes it for?"""

from __future__ import annotations

import typer

from meshwright.cli.data.flags import JsonFlag
from meshwright.cli.options import REQUIRED, argument, command, option

__all__ = ["verify"]


@command
def verify(
    inputs: list[str] = argument(
        REQUIRED, "Prefixes, folders, quoted patterns.", metavar="PAIRS..."
    ),
    vocab_size: int | None = option(
        None, "Ids must be below it [default: of tokenizer or manifest]."
    ),
    tokenizer: str | None = option(
        None, "To decode samples with.", "--tokenizer", "--tokenizer-model", metavar="FILE"
    ),
    tokenizer_type: str | None = option(None, "Megatron's name of it [default: by the file]."),
    vocab_file: str | None = option(None, "Of GPT-2 or BERT.", metavar="FILE"),
    merge_file: str | None = option(None, "Of GPT-2.", metavar="FILE"),
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
    import json
    from dataclasses import asdict

    from meshwright.cli.data.flags import tokenizer_spec
    from meshwright.data.encoders.choose import open_reference
    from meshwright.data.verifying import verify as run

    encoder = None
    if tokenizer is not None or vocab_file is not None:
        spec = tokenizer_spec(
            tokenizer_type=tokenizer_type,
            tokenizer=tokenizer,
            vocab_file=vocab_file,
            merge_file=merge_file,
        )
        encoder = open_reference(spec)
    found = run(inputs, vocab_size=vocab_size, encoder=encoder, samples=samples)
    if json_output:
        print(json.dumps([{**asdict(pair), "passed": pair.passed} for pair in found], indent=2))
    else:
        for pair in found:
            print(f"{pair.prefix}: {'all is well' if pair.passed else 'BROKEN'}")
            for check in pair.checks:
                print(f"  {'ok  ' if check.passed else 'FAIL'}  {check.name}: {check.found}")
            for document, text in pair.samples:
                print(f"  document {document}: {text!r}")
    if not all(pair.passed for pair in found):
        raise typer.Exit(1)
