"""`meshwright data plan`: the disk that a corpus takes."""

from __future__ import annotations

import typer

from meshwright.cli.data.flags import JsonFlag
from meshwright.cli.options import argument, command, option

__all__ = ["plan"]


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
    from meshwright.data.atomic import parse_size
    from meshwright.data.footprint import BYTES_PER_TOKEN
    from meshwright.data.footprint import plan as run

    found = run(
        inputs or (),
        corpus=corpus,
        chunks=chunks,
        strategy=strategy,
        quota_bytes=None if quota is None else parse_size(quota, name="--quota"),
        vocab_size=vocab_size,
        bytes_per_token=BYTES_PER_TOKEN if bytes_per_token is None else bytes_per_token,
    )
    if json_output:
        import json

        print(json.dumps(found.to_dict(), indent=2))
    else:
        for line in found.lines():
            print(line)
    if found.exit_code:
        raise typer.Exit(found.exit_code)
