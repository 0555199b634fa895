"""`meshwright data concat`: many small files into shards of a wanted size."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli._terminal import QuietFlag
from meshwright.cli.data._flags import ConsumeFlag, InputsArgument, JsonFlag, OutputFlag, WorkersFlag, show

__all__ = ["concat"]


def concat(
    inputs: InputsArgument,
    output: OutputFlag,
    min_size: Annotated[str, typer.Option(metavar="SIZE", help="Of a shard: 500MB, 12GiB, or bytes.")] = "12GiB",
    max_size: Annotated[str, typer.Option(metavar="SIZE", help="Of a shard.")] = "16GiB",
    workers: WorkersFlag = 1,
    consume: ConsumeFlag = False,
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Join files of one document per line into shards between two sizes.

    Files follow each other in natural order (part_2 before part_10) and are cut at line ends only, so every shard can be written on its
    own: ranks and workers share them. Between two documents is exactly one line end, also where a file ends without one.

    Prints files and bytes; manifest.json has size, sha256 and documents of each shard. With --consume an input goes when every shard that
    holds a part of it was read back; until then both need disk.

    Examples:

      meshwright data concat plain -o shards

      meshwright data concat 'plain/**/*.jsonl' -o shards --min-size 500MB --max-size 1GB --workers 8

      meshwright data concat plain -o shards --consume
    """
    from meshwright.data.join import concat as run
    from meshwright.data.sizes import parse_size

    result = run(
        inputs,
        output=output,
        min_bytes=parse_size(min_size, name="--min-size"),
        max_bytes=parse_size(max_size, name="--max-size"),
        workers=workers,
        consume=consume,
        progress=not quiet,
    )
    show(result, json_output=json_output)
