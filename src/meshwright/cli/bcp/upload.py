"""`meshwright bcp upload`: files to a workspace or a dataset."""

from __future__ import annotations

from pathlib import Path

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
from meshwright.cli.options import REQUIRED, argument, command, option
from meshwright.values.units import counted

__all__ = ["upload"]

_SHOWN = 50


@command
def upload(
    target: TargetArgument,
    source: Path = argument(REQUIRED, "A file or a folder.", metavar="SOURCE"),
    remote: str | None = option(
        None, "Folder of the workspace [default: /].", "--to", metavar="PATH"
    ),
    exclude: list[str] | None = option(
        None, "Left out: *.tmp, raw/part_*; may be given often.", metavar="PATTERN"
    ),
    dry_run: DryRunFlag = False,
    org: OrgFlag = None,
    team: TeamFlag = None,
    ace: AceFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Send a file or a folder to a workspace or a dataset, without what patterns leave out.

    A pattern without a slash is one for names of files and folders anywhere, one with a slash for
    paths from SOURCE. What is listed is what is sent: NGC CLI gets a folder of links to exactly
    those files, since it has no patterns for datasets. Links are followed. A dataset of that name
    that is there is added to.

    Prints files and bytes; --dry-run lists the files. Exit code 3 where NGC CLI fails; the same
    command goes on.

    Examples:

      meshwright bcp upload workspace=slimpajama jobs --to /jobs

      meshwright bcp upload dataset=my-corpus corpus --exclude '*.tmp' --exclude .git --dry-run

      meshwright bcp upload workspace=slimpajama dist/meshwright.whl
    """
    from meshwright.data.progress import format_size
    from meshwright.platforms.base_command.storage import Target, choose

    found = Target.of(target)
    chosen = choose(source, exclude=exclude or ())
    if not json_output:
        for name in chosen.files[: _SHOWN if dry_run else 0]:
            print(name)
        if dry_run and len(chosen.files) > _SHOWN:
            print(f"... and {len(chosen.files) - _SHOWN:,} more")
        left = f", {chosen.excluded:,} left out" if chosen.excluded else ""
        print(
            f"{counted(len(chosen.files), 'file')}, {format_size(chosen.size_bytes)}{left}",
            flush=True,
        )
    if dry_run and chosen.excluded:
        typer.echo(
            "note: in place of SOURCE the command gets a folder of links to these files", err=True
        )
    transfer = storage(org=org, team=team, ace=ace, dry_run=dry_run).upload(
        found, chosen, to=remote, quiet=json_output
    )
    more = {
        "files": list(chosen.files),
        "size_bytes": chosen.size_bytes,
        "excluded": chosen.excluded,
    }
    show(transfer, dry_run=dry_run, json_output=json_output, more=more)
