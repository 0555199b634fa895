"""`meshwright bcp list`: workspaces, datasets, or results of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from meshwright.cli.bcp.flags import AceFlag, JsonFlag, OrgFlag, TeamFlag, storage
from meshwright.cli.options import REQUIRED, argument, command, option

__all__ = ["list"]

_KINDS = {"workspaces": "workspace", "datasets": "dataset", "results": "result"}


@command
def list(  # the command's name
    kind: str = argument(REQUIRED, "workspaces, datasets or results.", metavar="KIND"),
    name: str | None = option(None, "Only of this name; * and ? are taken.", metavar="PATTERN"),
    owned: bool = option(False, "Only your own."),
    org: OrgFlag = None,
    team: TeamFlag = None,
    ace: AceFlag = None,
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
    import json

    from meshwright.values.errors import UnknownNameError

    if kind not in _KINDS:
        raise UnknownNameError("kind of storage", kind, _KINDS)
    rows = storage(org=org, team=team, ace=ace).listed(_KINDS[kind], name=name, owned=owned)  # type: ignore[arg-type]
    if json_output:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(_result(row) if kind == "results" else _stored(row))
    if not rows:
        typer.echo(f"no {kind}", err=True)
        raise typer.Exit(1)


def _stored(row: Mapping[str, Any]) -> str:
    from meshwright.data.progress import format_size

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
