"""`meshwright data check`: are the files of a step what its manifest says?"""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli.data.flags import JsonFlag
from meshwright.values.units import counted

__all__ = ["check"]


def check(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER...", help="With a manifest.json, or manifests.", show_default=False
        ),
    ],
    corpus: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="All files of this corpus must be named: slimpajama."),
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(metavar="N", help="Of the corpus: its first chunks.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", "-j", metavar="N", help="Threads that read.")
    ] = 4,
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
