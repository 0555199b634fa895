"""`meshwright bcp unmount`: takes a workspace off this machine."""

from __future__ import annotations

from pathlib import Path

from meshwright.cli.bcp.flags import DryRunFlag, JsonFlag, show, storage
from meshwright.cli.options import REQUIRED, argument, command

__all__ = ["unmount"]


@command
def unmount(
    folder: Path = argument(REQUIRED, "Where it is mounted.", metavar="FOLDER"),
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
