"""`meshwright bcp mount`: a workspace as a folder of this machine."""

from __future__ import annotations

from pathlib import Path

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
from meshwright.cli.options import REQUIRED, argument, command, option

__all__ = ["mount"]


@command
def mount(
    target: TargetArgument,
    folder: Path = argument(REQUIRED, "Empty, or made.", metavar="FOLDER"),
    rw: bool = option(False, "To write too; without it, to read."),
    remote: str | None = option(
        None, "A folder of the workspace [default: all].", "--remote-path", metavar="PATH"
    ),
    dry_run: DryRunFlag = False,
    org: OrgFlag = None,
    team: TeamFlag = None,
    ace: AceFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Mount a workspace on this machine, to read unless --rw is given. NGC CLI does it by sshfs,
    which must be installed.

    A folder with files in it is refused, for they would be hidden. Jobs mount workspaces by
    `--mount workspace=NAME:/PATH`.

    Prints what NGC CLI says. Exit code 3 where it fails.

    Examples:

      meshwright bcp mount workspace=slimpajama ~/slimpajama

      meshwright bcp mount workspace=slimpajama ~/tokens --remote-path /tokens

      meshwright bcp mount workspace=slimpajama ~/slimpajama --rw --dry-run
    """
    from meshwright.platforms.base_command.storage import Target

    asked = storage(org=org, team=team, ace=ace, dry_run=dry_run)
    transfer = asked.mount(
        Target.of(target), folder, mode="RW" if rw else "RO", remote=remote, quiet=json_output
    )
    show(transfer, dry_run=dry_run, json_output=json_output)
