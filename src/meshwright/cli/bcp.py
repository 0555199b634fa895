"""Workspaces, datasets and results on NVIDIA Base Command Platform, through NGC CLI up to
4.19.1."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, print_json, tell
from meshwright.data.workers import (
    format_size,
)
from meshwright.platforms.base_command.storage import Place, Storage, Target, Transfer, choose
from meshwright.values.errors import UnknownNameError
from meshwright.values.units import counted

__all__ = [
    "COMMANDS",
    "DRY_RUN",
    "PLACE",
    "TARGET",
    "create",
    "download",
    "list_",
    "mount",
    "show",
    "storage",
    "unmount",
    "upload",
]

COMMANDS = dict.fromkeys(("list", "create", "upload", "download", "mount", "unmount"), "")


PLACE: Any = fields_of(Place)
DRY_RUN: Any = option(False, "Print the command of NGC CLI, and run nothing.")
TARGET: Any = argument(
    REQUIRED, "workspace=NAME, dataset=NAME or result=JOB[:REPLICA].", metavar="KIND=NAME"
)


def storage(where: Given, *, dry_run: bool = False) -> Storage:
    """Return where it is asked."""
    return Storage(place=Place(**where), is_dry=dry_run)


def show(
    transfer: Transfer, *, dry_run: bool, json_output: bool, more: dict[str, Any] | None = None
) -> None:
    """Print what was done, or would be; exit code 3 where NGC CLI ended with an error, for some of
    it may have arrived."""
    if json_output:
        print_json(
            {
                **(more or {}),
                "command": list(transfer.command),
                "code": None if dry_run else transfer.code,
            }
        )
    elif dry_run:
        print(shlex.join(transfer.command))
    if transfer.code:
        tell(f"NGC CLI ended with code {transfer.code}: {shlex.join(transfer.command)}")
        raise typer.Exit(3)


_KINDS = {"workspaces": "workspace", "datasets": "dataset", "results": "result"}


@command
def list_(
    kind: str = argument(REQUIRED, "workspaces, datasets or results.", metavar="KIND"),
    name: str | None = option(None, "Only of this name; * and ? are taken.", metavar="PATTERN"),
    owned: bool = option(False, "Only your own."),
    where: Given = PLACE,
    json_output: JsonFlag = False,
) -> None:
    """List workspaces, datasets, or the results of the jobs that ended in the last 30 days.

    Workspaces are written by jobs and by you, datasets are read only once they are sent, and each
    replica of a job has a result.

    Prints a line for each with its id, name and size; of a result the job's number, name and end.
    Exit code 1 where there is none.

    Examples:

      meshwright bcp list workspaces --owned

      meshwright bcp list datasets --name 'slim*' --json

      meshwright bcp list results --ace my-ace
    """
    if kind not in _KINDS:
        raise UnknownNameError("kind of storage", kind, _KINDS)
    rows = storage(where).listed(_KINDS[kind], name=name, owned=owned)  # type: ignore[arg-type]
    if json_output:
        print_json(rows)
    else:
        for row in rows:
            print(_result(row) if kind == "results" else _stored(row))
    if not rows:
        tell(f"no {kind}")
        raise typer.Exit(1)


def _stored(row: Mapping[str, Any]) -> str:
    size = row.get("sizeInBytes", row.get("size"))
    words = [
        str(row.get("id", row.get("datasetUuid", ""))),
        str(row.get("name") or ""),
        "" if size is None else format_size(int(size)),
    ]
    return "  ".join([*words, str(row.get("aceName") or "")]).rstrip()


def _result(row: Mapping[str, Any]) -> str:
    status = row.get("jobStatus") or {}
    name = (row.get("jobDefinition") or {}).get("name", "")
    return f"{row.get('id')}  {name}  {status.get('status', '')}  {status.get('endedAt', '')}"


@command
def create(
    target: str = TARGET,
    dry_run: bool = DRY_RUN,
    where: Given = PLACE,
    json_output: JsonFlag = False,
) -> None:
    """Make a workspace. One of that name that is there is not made again.

    Jobs mount it by `--mount workspace=ID:/mount/data`. A dataset is made by its upload, a result
    by its job.

    Prints its id and name.

    Examples:

      meshwright bcp create workspace=slimpajama

      meshwright bcp create workspace=slimpajama --ace my-ace --json

      meshwright bcp create workspace=slimpajama --dry-run
    """
    made = storage(where, dry_run=dry_run).create(Target.of(target))
    if json_output:
        print_json(made)
    elif dry_run:
        print(shlex.join(made["command"]))
    else:
        print(
            f"{made.get('id')} "
            f" {made.get('name')}{'' if made['created'] else ': was there already'}"
        )


_SHOWN = 50


@command
def upload(
    target: str = TARGET,
    source: Path = argument(REQUIRED, "A file or a folder.", metavar="SOURCE"),
    remote: str | None = option(
        None, "Folder of the workspace [default: /].", "--to", metavar="PATH"
    ),
    exclude: list[str] | None = option(
        None, "Left out: *.tmp, raw/part_*; may be given often.", metavar="PATTERN"
    ),
    dry_run: bool = DRY_RUN,
    where: Given = PLACE,
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
        tell("note: in place of SOURCE the command gets a folder of links to these files")
    transfer = storage(where, dry_run=dry_run).upload(found, chosen, to=remote, quiet=json_output)
    more = {
        "files": list(chosen.files),
        "size_bytes": chosen.size_bytes,
        "excluded": chosen.excluded,
    }
    show(transfer, dry_run=dry_run, json_output=json_output, more=more)


@command
def download(
    target: str = TARGET,
    folder: Path = option(Path("."), "Where it goes.", "--to", "-o", metavar="FOLDER"),
    file: list[str] | None = option(
        None, "Only these; patterns for datasets and results.", metavar="FILE"
    ),
    directory: list[str] | None = option(None, "Only these folders.", "--dir", metavar="FOLDER"),
    exclude: list[str] | None = option(
        None, "Left out, of datasets and results.", metavar="PATTERN"
    ),
    dry_run: bool = DRY_RUN,
    where: Given = PLACE,
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
    asked = storage(where, dry_run=dry_run)
    transfer = asked.download(
        Target.of(target),
        folder,
        files=file or (),
        folders=directory or (),
        exclude=exclude or (),
        quiet=json_output,
    )
    show(transfer, dry_run=dry_run, json_output=json_output)


@command
def mount(
    target: str = TARGET,
    folder: Path = argument(REQUIRED, "Empty, or made.", metavar="FOLDER"),
    rw: bool = option(False, "To write too; without it, to read."),
    remote: str | None = option(
        None, "A folder of the workspace [default: all].", "--remote-path", metavar="PATH"
    ),
    dry_run: bool = DRY_RUN,
    where: Given = PLACE,
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
    asked = storage(where, dry_run=dry_run)
    transfer = asked.mount(
        Target.of(target), folder, mode="RW" if rw else "RO", remote=remote, quiet=json_output
    )
    show(transfer, dry_run=dry_run, json_output=json_output)


@command
def unmount(
    folder: Path = argument(REQUIRED, "Where it is mounted.", metavar="FOLDER"),
    dry_run: bool = DRY_RUN,
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
    transfer = storage({}, dry_run=dry_run).unmount(folder, quiet=json_output)
    show(transfer, dry_run=dry_run, json_output=json_output)
