"""`meshwright bcp download`: a workspace, a dataset, or what a job left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.bcp.flags import (
    AceFlag,
    DryRunFlag,
    JsonFlag,
    OrgFlag,
    TargetArgument,
    TeamFlag,
    show,
    storage,
)

__all__ = ["download"]


def download(
    target: TargetArgument,
    folder: Annotated[
        Path, typer.Option("--to", "-o", metavar="FOLDER", help="Where it goes.")
    ] = Path("."),
    file: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Only these; patterns for datasets and results."),
    ] = None,
    directory: Annotated[
        list[str] | None, typer.Option("--dir", metavar="FOLDER", help="Only these folders.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Left out, of datasets and results.")
    ] = None,
    dry_run: DryRunFlag = False,
    org: OrgFlag = None,
    team: TeamFlag = None,
    ace: AceFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Fetch a workspace, a dataset, or what a job (or one replica of it) left in its result folder.

    NGC CLI puts it into a folder of its id below --to. A result is that of the first replica unless
    another is named.

    Prints what NGC CLI does, which shows its progress. Exit code 3 where it fails.

    Examples:

      meshwright bcp download result=5000123 -o results

      meshwright bcp download result=5000123:1 --exclude '*.ckpt'

      meshwright bcp download workspace=slimpajama --file tokens/blend.json
    """
    from meshwright.platforms.base_command.storage import Target

    asked = storage(org=org, team=team, ace=ace, dry_run=dry_run)
    transfer = asked.download(
        Target.of(target),
        folder,
        files=file or (),
        folders=directory or (),
        exclude=exclude or (),
        quiet=json_output,
    )
    show(transfer, dry_run=dry_run, json_output=json_output)
