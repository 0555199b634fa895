"""`meshwright bcp download`: a workspace, a dataset, or what a job left."""

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
from meshwright.cli.options import command, option

__all__ = ["download"]


@command
def download(
    target: TargetArgument,
    folder: Path = option(Path("."), "Where it goes.", "--to", "-o", metavar="FOLDER"),
    file: list[str] | None = option(
        None, "Only these; patterns for datasets and results.", metavar="FILE"
    ),
    directory: list[str] | None = option(None, "Only these folders.", "--dir", metavar="FOLDER"),
    exclude: list[str] | None = option(
        None, "Left out, of datasets and results.", metavar="PATTERN"
    ),
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
