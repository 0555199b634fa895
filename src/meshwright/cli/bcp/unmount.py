"""`meshwright bcp unmount`: takes a workspace off this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.bcp.flags import DryRunFlag, JsonFlag, show, storage

__all__ = ["unmount"]


def unmount(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where it is mounted.", show_default=False)
    ],
    dry_run: DryRunFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Take a workspace off this machine.

    What was written to it stays in the workspace.

    Prints what NGC CLI says. Exit code 3 where it fails.

    Examples:

      meshwright bcp unmount ~/slimpajama

      meshwright bcp unmount ~/slimpajama --dry-run

      meshwright bcp unmount ~/slimpajama --json
    """
    transfer = storage(org=None, team=None, ace=None, dry_run=dry_run).unmount(
        folder, quiet=json_output
    )
    show(transfer, dry_run=dry_run, json_output=json_output)
