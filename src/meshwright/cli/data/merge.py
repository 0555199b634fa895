"""`meshwright data merge`: several .bin/.idx pairs into one."""

from __future__ import annotations

import typer

from meshwright.cli.data.flags import JsonFlag
from meshwright.cli.options import argument, command, option
from meshwright.values.units import counted

__all__ = ["merge"]


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
    merge_datasets.py does, but after a kill it goes on behind the last pair that was whole. Pairs
    with other types of ids are refused. One process does it; other ranks have nothing to do.

    Prints documents and tokens; PREFIX.manifest.json has sizes and sha256.

    Examples:

      meshwright data merge data/en_text_document data/de_text_document -o data/both

      meshwright data merge shards/ -o data/all

      meshwright data merge --input shards --output-prefix data/all --overwrite --json
    """
    import json
    import os
    from dataclasses import asdict

    from meshwright.data.merging import merge as run
    from meshwright.data.ranks import find_place
    from meshwright.values.errors import ConfigError

    place = find_place(os.environ)
    if place.rank:
        typer.echo(f"rank {place.rank}: rank 0 merges", err=True)
        return
    words = [*(input_words or []), *(inputs or [])]
    if not words:
        raise ConfigError("no pair: give prefixes, or a folder")
    report = run(words, output_prefix=output_prefix, overwrite=overwrite)
    if json_output:
        print(json.dumps({**asdict(report), "manifest": report.manifest.to_dict()}, indent=2))
    else:
        of = (
            (len(report.sources), "pair"),
            (report.documents, "document"),
            (report.tokens, "token"),
        )
        print(f"{report.prefix}: {', '.join(counted(number, noun) for number, noun in of)}")
