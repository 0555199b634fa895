"""`meshwright data check`: are the files of a step what its manifest says?"""

from __future__ import annotations

import typer

from meshwright.cli.data.flags import JsonFlag
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.values.units import counted

__all__ = ["check"]


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
    import json
    from dataclasses import asdict

    from meshwright.data.progress import format_size
    from meshwright.data.verifying import check as run

    report = run(inputs, corpus=corpus, chunks=chunks, workers=workers)
    if json_output:
        print(json.dumps(asdict(report), indent=2))
    else:
        for fault in report.faults:
            print(fault)
        well = "all are well" if not report.faults else f"{len(report.faults):,} faults"
        print(f"{counted(report.files, 'file')}, {format_size(report.size_bytes)}: {well}")
    if report.faults:
        raise typer.Exit(1)
