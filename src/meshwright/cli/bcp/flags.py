"""Flags that the commands share, and how a transfer is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from meshwright.platforms.base_command.storage import Storage, Transfer

__all__ = [
    "AceFlag",
    "DryRunFlag",
    "JsonFlag",
    "OrgFlag",
    "TargetArgument",
    "TeamFlag",
    "show",
    "storage",
]

OrgFlag = Annotated[
    str | None,
    typer.Option("--org", metavar="NAME", help="Organization [default: as NGC CLI is set up]."),
]
TeamFlag = Annotated[str | None, typer.Option("--team", metavar="NAME", help="Team.")]
AceFlag = Annotated[str | None, typer.Option("--ace", metavar="NAME", help="Environment (ACE).")]
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="Print the command of NGC CLI, and run nothing.")
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]
TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="KIND=NAME",
        help="workspace=NAME, dataset=NAME or result=JOB[:REPLICA].",
        show_default=False,
    ),
]


def storage(
    *, org: str | None, team: str | None, ace: str | None, dry_run: bool = False
) -> Storage:
    """Return where it is asked."""
    from meshwright.platforms.base_command.storage import Place, Storage

    return Storage(place=Place(org=org, team=team, ace=ace), is_dry=dry_run)


def show(
    transfer: Transfer, *, dry_run: bool, json_output: bool, more: dict[str, Any] | None = None
) -> None:
    """Print what was done, or would be; exit code 3 where NGC CLI ended with an error, for some of
    it may have arrived."""
    import json
    import shlex

    if json_output:
        print(
            json.dumps(
                {
                    **(more or {}),
                    "command": list(transfer.command),
                    "code": None if dry_run else transfer.code,
                },
                indent=2,
            )
        )
    elif dry_run:
        print(shlex.join(transfer.command))
    if transfer.code:
        typer.echo(
            f"NGC CLI ended with code {transfer.code}: {shlex.join(transfer.command)}", err=True
        )
        raise typer.Exit(3)
