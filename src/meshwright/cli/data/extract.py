"""`meshwright data extract`: archives to plain files."""

from __future__ import annotations

from meshwright.cli.data.flags import (
    ConsumeFlag,
    InputsArgument,
    JsonFlag,
    OutputFlag,
    WorkersFlag,
    show,
)
from meshwright.cli.terminal import QuietFlag

__all__ = ["extract"]


def extract(
    inputs: InputsArgument,
    output: OutputFlag,
    workers: WorkersFlag = 1,
    consume: ConsumeFlag = False,
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Extract .zst, .gz, .bz2 and .xz files.

    Ranks share the files by size. Archives of several members or frames are read to the end, and
    one that is cut off is named and not written. `tokenize` reads archives as they are, so this
    step is for tools that don't.

    A second start does what is left. Prints files and bytes, and what failed with the reason;
    manifest.json has size and sha256 of each file. Exit code 3 where an archive is damaged or
    missing.

    Examples:

      meshwright data extract raw -o plain

      meshwright data extract 'raw/chunk1/*.jsonl.zst' -o plain --workers 8

      meshwright data extract @archives.txt -o plain --consume
    """
    from meshwright.data.archives import extract as run

    show(
        run(inputs, output=output, workers=workers, consume=consume, progress=not quiet),
        json_output=json_output,
    )
