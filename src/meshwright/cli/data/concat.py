"""`meshwright data concat`: many small files into shards of a wanted size."""

from __future__ import annotations

from meshwright.cli.data.flags import (
    ConsumeFlag,
    InputsArgument,
    JsonFlag,
    OutputFlag,
    WorkersFlag,
    show,
)
from meshwright.cli.options import command, option
from meshwright.cli.terminal import QuietFlag

__all__ = ["concat"]


@command
def concat(
    inputs: InputsArgument,
    output: OutputFlag,
    min_size: str | None = option(
        None, "Of a shard: 500MB, bytes [default: 12GiB].", metavar="SIZE"
    ),
    max_size: str | None = option(None, "Of a shard [default: 16GiB].", metavar="SIZE"),
    shards: int | None = option(None, "So many even shards, instead of sizes.", metavar="N"),
    workers: WorkersFlag = 1,
    consume: ConsumeFlag = False,
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Join files of one document per line into shards between two sizes.

    Files follow each other in natural order (part_2 before part_10) and are cut at line ends only,
    so every shard can be written on its own: ranks and workers share them. Between two documents is
    exactly one line end, also where a file ends without one.

    Prints files and bytes; manifest.json has size, sha256 and documents of each shard. With
    --consume an input goes when every shard that holds a part of it was read back; until then both
    need disk.

    Examples:

      meshwright data concat plain -o shards

      meshwright data concat 'plain/**/*.jsonl' -o shards --min-size 500MB --max-size 1GB --workers 8

      meshwright data concat plain -o shards --shards 74 --consume
    """  # noqa: E501
    from meshwright.data.atomic import parse_size
    from meshwright.data.join import MAX_BYTES, MIN_BYTES
    from meshwright.data.join import concat as run
    from meshwright.values.errors import ConfigError

    if shards is not None and (min_size or max_size):
        raise ConfigError(
            "--shards: their sizes follow from it; leave --min-size and --max-size out"
        )
    result = run(
        inputs,
        output=output,
        min_bytes=MIN_BYTES if min_size is None else parse_size(min_size, name="--min-size"),
        max_bytes=MAX_BYTES if max_size is None else parse_size(max_size, name="--max-size"),
        shards=shards,
        workers=workers,
        consume=consume,
        progress=not quiet,
    )
    show(result, json_output=json_output)
